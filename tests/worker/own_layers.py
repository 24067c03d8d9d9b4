"""A layer of a user's own, which whoever loads model.keras has to import too."""

import keras


@keras.saving.register_keras_serializable("tests")
class Cross(keras.layers.Layer):
    """A layer of a cross network."""

    def build(self, shapes):
        self.kernel = self.add_weight(shape=(shapes[0][-1],) * 2, name="kernel")
        self.bias = self.add_weight(shape=(shapes[0][-1],), initializer="zeros", name="bias")

    def call(self, inputs):
        first, x = inputs
        return first * (keras.ops.matmul(x, self.kernel) + self.bias) + x
