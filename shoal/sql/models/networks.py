"""The part of a module that is the model: custom_model's lines from its inputs to the logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shoal.sql.errors import SqlError
from shoal.sql.models.feed import WIDTH, Feed, listed, literal
from shoal.sql.models.plan import Feature, Ids, Number

PARTS = {"linear_feature_columns": "linear part", "dnn_feature_columns": "deep part"}


@dataclass
class Network:
    """A model in the making.

    units: outputs of its last layer. attributes: all of them, checked.
    """

    model: str
    feed: Feed
    units: int
    attributes: Mapping[str, Any]

    def __post_init__(self) -> None:
        self.features = self.feed.plan.features
        self.has_linear_tables = False

    def lines(self) -> list[str]:
        """The lines of custom_model that make `logits` of `inputs`. Raises SqlError."""
        combined = self.model.startswith("DNNLinearCombined")
        for feature in self.features:
            if feature.target and not combined:
                raise SqlError(f"{self.model} has no {PARTS[feature.target]}, which FOR names")
        kinds: dict[str, Callable[[], list[str]]] = {
            "DNN": self._dnn,
            "Linear": self._linear,
            "DNNLinearCombined": self._combined,
            "DeepFM": self._deepfm,
            "DCN": self._dcn,
        }
        return kinds[self.model.removesuffix("Classifier").removesuffix("Regressor")]()

    # -------------------------------------------------------- models

    def _dnn(self) -> list[str]:
        return [*self._joined(self.features), *self._hidden(), f"logits = {self._dense('hidden')}"]

    def _linear(self) -> list[str]:
        return [*self._wide(self.features), "logits = sum(linear)"]

    def _combined(self) -> list[str]:
        wide = [each for each in self.features if each.target != "dnn_feature_columns"]
        deep = [each for each in self.features if each.target != "linear_feature_columns"]
        for some, name in ((wide, "linear"), (deep, "dnn")):
            if not some:
                raise SqlError(f"{self.model}: no column is FOR {name}_feature_columns")
        # Vectors are for the deep part where the clause does not say.
        wide = [
            replace(e, derived=(e.output == "embedding" and not e.target) or e.derived)
            for e in wide
        ]
        return [
            *self._wide(wide),
            *self._joined(deep),
            *self._hidden(),
            f"logits = sum(linear) + {self._dense('hidden')}",
        ]

    def _deepfm(self) -> list[str]:
        fields = [each for each in self.features if each.output == "embedding"]
        if len(fields) < 2:
            raise SqlError("DeepFM multiplies categories with each other: it needs two or more")
        said = {each.dim: each for each in fields if not each.derived}
        if len(said) > 1:
            first, other = [*said.values()][:2]
            raise SqlError(
                "DeepFM multiplies vectors, which must be of one length: give "
                f"{first.said} and {other.said} the same"
            )
        dim = next(iter(said), 0) or self.attributes["model.dim"] or max(e.dim for e in fields)
        alike = {each.name: replace(each, dim=dim) for each in fields}
        others = [each for each in self.features if each.name not in alike]
        linear = [replace(each, derived=True) for each in fields] + others
        deep = ["keras.layers.Flatten()(factors)", *self._dense_inputs(others)]
        return [
            *self._wide(linear),
            listed("vectors = [", map(self._table, alike.values()), "]", 4).strip(),
            "factors = keras.ops.stack(vectors, axis=1)",
            "# Half of (square of the sum - sum of the squares) is the sum over all pairs.",
            "square_of_sum = keras.ops.square(keras.ops.sum(factors, axis=1))",
            "sum_of_squares = keras.ops.sum(keras.ops.square(factors), axis=1)",
            "pairs = keras.ops.sum(square_of_sum - sum_of_squares, axis=1, keepdims=True) / 2",
            *self._concatenated("hidden", deep),
            *self._hidden(),
            f"logits = sum(linear) + pairs + {self._dense('hidden')}",
        ]

    def _dcn(self) -> list[str]:
        return [
            *self._joined(self.features),
            "first = crossed = hidden",
            "for _ in range(CROSS_LAYERS):",
            "    crossed = first * keras.layers.Dense(first.shape[-1])(crossed) + crossed",
            *self._hidden(),
            "both = keras.layers.Concatenate()([crossed, hidden])",
            f"logits = {self._dense('both')}",
        ]

    # -------------------------------------------------------- parts

    def _hidden(self) -> list[str]:
        lines = [
            "for units in HIDDEN_UNITS:",
            '    hidden = keras.layers.Dense(units, activation="relu")(hidden)',
        ]
        if self.attributes["model.dropout"]:
            lines.append("    hidden = keras.layers.Dropout(DROPOUT)(hidden)")
        return lines

    def _joined(self, features: Sequence[Feature]) -> list[str]:
        """All features side by side, as `hidden`."""
        vectors = self._dense_inputs(features)
        vectors += [self._table(each) for each in features if each.output == "embedding"]
        return self._concatenated("hidden", vectors)

    def _wide(self, features: Sequence[Feature]) -> list[str]:
        """The linear forms of the features, as `linear`: a weight an id, or one a number."""
        weights = [self._weight(e) for e in features if e.output == "embedding" and e.derived]
        self.has_linear_tables = bool(weights)
        rest = [each for each in features if not (each.output == "embedding" and each.derived)]
        dense = self._dense_inputs(rest)
        dense += [self._table(each) for each in rest if each.output == "embedding"]
        if not dense:
            return [listed("linear = [", weights, "]", 4).strip()]
        return [
            *self._concatenated("numbers", dense),
            listed("linear = [", [*weights, self._dense("numbers")], "]", 4).strip(),
        ]

    def _dense(self, of: str) -> str:
        return f"keras.layers.Dense({self.units})({of})"

    def _concatenated(self, name: str, vectors: Sequence[str]) -> list[str]:
        """Vectors side by side, under a name."""
        if len(vectors) == 1:
            return [f"{name} = {vectors[0]}"]
        return [
            listed("vectors = [", vectors, "]", 4).strip(),
            f"{name} = keras.layers.Concatenate()(vectors)",
        ]

    # -------------------------------------------------------- features

    def _dense_inputs(self, features: Sequence[Feature]) -> list[str]:
        """Features that are numbers already, and indicators."""
        found: dict[str, None] = {}
        for each in features:
            if isinstance(each.source, Number):
                found[f'inputs["{self.feed.numbers_name}"]'] = None
            elif each.output == "number":
                found[self._input(each)] = None
            elif each.output == "indicator":
                lists = isinstance(each.source, Ids) and each.source.listed
                mode = "multi_hot" if lists else "one_hot"
                size = getattr(each.source, "size", None)
                layer = f'keras.layers.CategoryEncoding({size}, "{mode}")'
                found[f"{layer}({self._input(each)})"] = None
        return [*found]

    def _input(self, feature: Feature) -> str:
        return f'inputs["{self.feed.names[feature.source]}"]'

    def _weight(self, feature: Feature) -> str:
        """A weight for each id."""
        weights = replace(feature, dim=self.units, initializer="zeros")
        return self._table(weights, f"linear_{feature.name}")

    def _table(self, feature: Feature, name: str = "") -> str:
        """An embedding layer, called: the name of its table is no input's."""
        name = name or f"{feature.name}_vectors"
        source = feature.source
        arguments = [str(feature.dim)]
        if feature.initializer != "uniform":
            arguments.append(literal(feature.initializer))
        given = self._input(feature)
        if isinstance(source, Ids) and source.listed:
            arguments.append(f"combiner={literal(feature.combiner)}")
            if source.weighted:
                given += f', inputs["{self.feed.names[source]}_weights"]'
        layer = f'Embedding({", ".join(arguments)}, name="{name}")'
        if len(layer) + len(given) > WIDTH - 12:
            return f"{layer}(\n            {given}\n        )"
        return f"{layer}({given})"
