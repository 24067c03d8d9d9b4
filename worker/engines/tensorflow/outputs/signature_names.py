"""Names for the tensors of a SavedModel's signature.

A signature has a flat list of named tensors; features and outputs may be dicts, lists and
tuples in each other, and their names any text. TensorFlow makes the names of a signature out
of a function's arguments, which must be identifiers; so the function is traced with
arguments that are, and the names are put right in the file.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from shoal.base.disk.wholefile import replacing
from shoal.errors import UserError


def names_of(structure: Any, what: str, single: str) -> list[str]:
    """A name for each leaf, in the order of tf.nest.flatten.

    structure: of dicts, lists and tuples. A leaf within a dict is called by its keys, with a
        slash between; one within a list by `what`_POSITION; if it is the only one, `single`.
    Raises UserError as `checked`.
    """
    found = ["/".join(path) for path in paths_of(structure)]
    if not isinstance(structure, Mapping):
        found = [single] if len(found) == 1 else [f"{what}_{path}" for path in found]
    return checked(found, what)


def checked(names: list[str], what: str) -> list[str]:
    """The names of an export's inputs or outputs. Raises UserError if two are the same."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(
            f"two {what}s of the model would both be called {twice[0]!r} in an export, where "
            "nested ones are called outer/inner and lists name_values: rename one of them"
        )
    return names


def parts_of(name: str, spec: Any) -> list[str]:
    """The names of the tensors that a feature consists of, in the order of tf.nest.flatten.

    name, spec: of the feature. Lists are `name_values` and `name_row_splits`; a tensor is `name`.
    """
    if isinstance(spec, tf.TensorSpec):
        return [name]
    if isinstance(spec, tf.SparseTensorSpec):
        parts = ["indices", "values", "dense_shape"]
    elif spec.ragged_rank == 1:
        parts = ["values", "row_splits"]
    else:
        parts = ["values", *(f"row_splits_{level}" for level in range(spec.ragged_rank))]
    return [f"{name}_{part}" for part in parts]


def paths_of(structure: Any) -> Iterator[tuple[str, ...]]:
    """The keys and positions that lead to each leaf, in the order of tf.nest.flatten."""
    if isinstance(structure, Mapping):
        parts: Iterable[tuple[Any, Any]] = sorted(structure.items())  # as tf.nest takes them
    elif isinstance(structure, tuple) and hasattr(structure, "_fields"):
        parts = zip(structure._fields, structure, strict=True)
    elif isinstance(structure, list | tuple):
        parts = enumerate(structure)
    else:
        yield ()
        return
    for key, part in parts:
        for path in paths_of(part):
            yield (str(key), *path)


def arguments_of(names: Iterable[str]) -> dict[str, str]:
    """Argument of a traced function -> name, for each of the names, in their order.

    An argument is made as TensorFlow makes one of a name with which a signature is called from
    Python. So the call may use the name, unless another name makes the same argument.
    """
    arguments: dict[str, str] = {}
    for name in names:
        argument = re.sub(r"[^0-9A-Za-z]", "_", name)
        if not argument[:1].isalpha():
            argument = f"arg_{argument}"
        while argument in arguments or keyword.iskeyword(argument) or argument == "self":
            argument += "_"
        arguments[argument] = name
    return arguments


def rename(folder: Path, signatures: Mapping[str, Mapping[str, str]]) -> None:
    """Give the inputs of a SavedModel's signatures their names.

    signatures: of each, what `arguments_of` gave.
    """
    changed = {
        key: each for key, each in signatures.items() if any(a != n for a, n in each.items())
    }
    if not changed:
        return
    path = folder / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    for graph in model.meta_graphs:
        nodes = graph.object_graph_def.nodes
        # Of the root object, the child `signatures`, and its children by the signatures' keys.
        children = {each.local_name: each.node_id for each in nodes[0].children}
        functions = {
            each.local_name: nodes[each.node_id].bare_concrete_function
            for each in nodes[children["signatures"]].children
        }
        for key, arguments in changed.items():
            inputs = graph.signature_def[key].inputs
            infos = {argument: info.SerializeToString() for argument, info in inputs.items()}
            inputs.clear()
            for argument, info in infos.items():
                inputs[arguments.get(argument, argument)].MergeFromString(info)
            # What Python calls the function with.
            function = functions[key]
            function.argument_keywords[:] = [
                arguments.get(each, each) for each in function.argument_keywords
            ]
            concrete = graph.object_graph_def.concrete_functions[function.concrete_function_name]
            specs = concrete.canonicalized_input_signature.tuple_value.values[1].dict_value.fields
            for argument, spec in specs.items():
                spec.tensor_spec_value.name = arguments.get(argument, argument)
    with replacing(path) as temporary:
        temporary.write_bytes(model.SerializeToString())
