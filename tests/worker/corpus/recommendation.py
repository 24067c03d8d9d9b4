"""Recommendation, as in Keras's examples and those of keras-rs."""

import keras
import keras_rs
import numpy as np
from keras import layers, ops

from .features import LENGTH, PAIR, RATED, ROWS, SEQUENCE, SEXES, TITLES, hidden, sigmoid


def behavior_sequence(positions):
    """A transformer over the films that somebody saw, the target last. positions: of the films."""

    def build():
        inputs = {
            "user_id": keras.Input((), dtype="int64", name="user_id"),
            "sex": keras.Input((), dtype="string", name="sex"),
            "sequence": keras.Input((LENGTH - 1,), dtype="string", name="sequence"),
            "ratings": keras.Input((LENGTH - 1,), name="ratings"),
            "target": keras.Input((), dtype="string", name="target"),
        }
        places = layers.StringLookup(vocabulary=TITLES, mask_token=None, num_oov_indices=0)
        films = layers.Embedding(ROWS, 8, name="films")
        genres = layers.Embedding(
            ROWS,
            3,
            embeddings_initializer=keras.initializers.Constant(np.eye(ROWS, 3)),
            trainable=False,
            name="genres",
        )
        process = layers.Dense(8, activation="relu", name="process")

        def film(titles):
            index = places(titles)
            return process(layers.concatenate([films(index), genres(index)]))

        seen = film(inputs["sequence"])
        position = layers.Embedding(LENGTH, 8, name="position")(positions(inputs["sequence"]))
        seen = (seen + position) * ops.expand_dims(inputs["ratings"], axis=-1)
        parts = ops.concatenate([seen, ops.expand_dims(film(inputs["target"]), axis=1)], axis=1)
        attended = layers.MultiHeadAttention(num_heads=2, key_dim=8, dropout=0.1)(parts, parts)
        x = layers.LayerNormalization()(layers.Add()([parts, layers.Dropout(0.1)(attended)]))
        x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(8)(layers.LeakyReLU()(x))]))
        sex = layers.StringLookup(vocabulary=SEXES, mask_token=None, num_oov_indices=0)
        others = [
            layers.Embedding(ROWS, 4, name="users")(inputs["user_id"]),
            layers.Embedding(2, 2, name="sexes")(sex(inputs["sex"])),
        ]
        return keras.Model(
            inputs, sigmoid(hidden(layers.concatenate([layers.Flatten()(x), *others])))
        )

    return build


def constant_positions(_):
    return ops.arange(start=0, stop=LENGTH - 1, step=1)


def positions_of_tensors(titles):
    """The same positions as a tensor of the model, of each record."""
    of_one = ops.expand_dims(ops.arange(0, LENGTH - 1), 0)
    return of_one + ops.zeros_like(ops.equal(titles, ""), dtype="int32")[:, : LENGTH - 1]


def towers():
    """Each tower from what stands for somebody or a film to a vector; their product is trained."""
    inputs = {
        "user": keras.Input((), dtype="int64", name="user"),
        "movie": keras.Input((), dtype="string", name="movie"),
    }
    query = keras.Sequential(
        [layers.Embedding(ROWS, 8, name="users"), layers.Dense(4)], name="query"
    )
    candidate = keras.Sequential(
        [
            layers.StringLookup(vocabulary=TITLES, mask_token=None),
            layers.Embedding(ROWS + 1, 8, name="movies"),
            layers.Dense(4),
        ],
        name="candidate",
    )
    product = layers.Dot(axes=1)([query(inputs["user"]), candidate(inputs["movie"])])
    return keras.Model(inputs, ops.sigmoid(product))


@keras.saving.register_keras_serializable("corpus")
class Ranking(keras.Model):
    """A rating of the two embeddings, by a network."""

    def __init__(self, users, movies, **kwargs):
        super().__init__(**kwargs)
        self.users = layers.Embedding(users, 8, name="users")
        self.movies = layers.Embedding(movies, 8, name="movies")
        self.rating = keras.Sequential(
            [layers.Dense(6, activation="relu"), layers.Dense(1, activation="sigmoid")]
        )

    def call(self, inputs):
        both = [self.users(inputs["user"]), self.movies(inputs["movie"])]
        return self.rating(ops.concatenate(both, axis=1))


@keras.saving.register_keras_serializable("corpus")
class Factorization(keras.Model):
    """A product of embeddings, and a bias of each."""

    def __init__(self, users, movies, **kwargs):
        super().__init__(**kwargs)
        self.parts = [
            layers.Embedding(count, dim, name=f"{name}_{dim}")
            for name, count in (("users", users), ("movies", movies))
            for dim in (4, 1)
        ]

    def call(self, inputs):
        users, user_bias = (part(inputs["user"]) for part in self.parts[:2])
        movies, movie_bias = (part(inputs["movie"]) for part in self.parts[2:])
        product = ops.sum(users * movies, axis=1, keepdims=True)
        return ops.sigmoid(product + user_bias + movie_bias)


def cross_network():
    """Of keras-rs: crosses of the features, and a network over them."""
    inputs = {name: keras.Input((), dtype="int64", name=name) for name in RATED}
    rows = [layers.Embedding(ROWS, 4, name=f"{name}_rows")(each) for name, each in inputs.items()]
    first = layers.concatenate(rows)
    crossed = keras_rs.layers.FeatureCross()(first, first)
    crossed = keras_rs.layers.FeatureCross(projection_dim=3)(first, crossed)
    dots = keras_rs.layers.DotInteraction()(rows)
    return keras.Model(inputs, sigmoid(hidden(layers.concatenate([crossed, dots]))))


MODELS = {
    "BST": (behavior_sequence(constant_positions), SEQUENCE),
    "BST, positions of tensors": (behavior_sequence(positions_of_tensors), SEQUENCE),
    "two towers": (towers, PAIR),
    "ranking": (lambda: Ranking(ROWS, ROWS), RATED),
    "factorization": (lambda: Factorization(ROWS, ROWS), RATED),
    "cross network": (cross_network, RATED),
}
