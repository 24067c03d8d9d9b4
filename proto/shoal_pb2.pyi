from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATA_TYPE_UNSPECIFIED: _ClassVar[DataType]
    INT64: _ClassVar[DataType]
    FLOAT32: _ClassVar[DataType]
    BFLOAT16: _ClassVar[DataType]
    FLOAT16: _ClassVar[DataType]
    INT32: _ClassVar[DataType]
    FLOAT64: _ClassVar[DataType]

class ErrorKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_KIND_UNSPECIFIED: _ClassVar[ErrorKind]
    NOT_REGISTERED: _ClassVar[ErrorKind]
    DENSE_NOT_INITIALIZED: _ClassVar[ErrorKind]
    SPEC_MISMATCH: _ClassVar[ErrorKind]
    STALE_ROUTING: _ClassVar[ErrorKind]
    NOT_OWNER: _ClassVar[ErrorKind]
    FENCED: _ClassVar[ErrorKind]
    BAD_REQUEST: _ClassVar[ErrorKind]
    UNKNOWN_TASK: _ClassVar[ErrorKind]
    NOT_READY: _ClassVar[ErrorKind]
    WRONG_PEER: _ClassVar[ErrorKind]
    CHECKPOINT_FAILED: _ClassVar[ErrorKind]
    NO_LOG: _ClassVar[ErrorKind]
    NOT_FINITE: _ClassVar[ErrorKind]
    OTHER_PROTOCOL: _ClassVar[ErrorKind]
    NOT_PERMITTED: _ClassVar[ErrorKind]

class MoveEntry(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MOVE_ENTRY_UNSPECIFIED: _ClassVar[MoveEntry]
    ROWS_CAME: _ClassVar[MoveEntry]
    SLOTS_EMPTIED: _ClassVar[MoveEntry]
    JOINED: _ClassVar[MoveEntry]
    SLICES_TAKEN: _ClassVar[MoveEntry]

class TaskKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_KIND_UNSPECIFIED: _ClassVar[TaskKind]
    DESCRIBE_DATA: _ClassVar[TaskKind]
    TRAIN: _ClassVar[TaskKind]
    EVALUATE: _ClassVar[TaskKind]
    PREDICT: _ClassVar[TaskKind]
    FINISH_EVALUATION: _ClassVar[TaskKind]
    EXPORT: _ClassVar[TaskKind]
    FINISH_PREDICTION: _ClassVar[TaskKind]
    DESCRIBE_SOURCES: _ClassVar[TaskKind]
    LIST_SOURCES: _ClassVar[TaskKind]

class FailureKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_KIND_UNSPECIFIED: _ClassVar[FailureKind]
    USER_ERROR: _ClassVar[FailureKind]
    USER_CODE: _ClassVar[FailureKind]
    INTERNAL: _ClassVar[FailureKind]
    ENVIRONMENT: _ClassVar[FailureKind]
    SERVER_AWAY: _ClassVar[FailureKind]
    STORAGE: _ClassVar[FailureKind]
DATA_TYPE_UNSPECIFIED: DataType
INT64: DataType
FLOAT32: DataType
BFLOAT16: DataType
FLOAT16: DataType
INT32: DataType
FLOAT64: DataType
ERROR_KIND_UNSPECIFIED: ErrorKind
NOT_REGISTERED: ErrorKind
DENSE_NOT_INITIALIZED: ErrorKind
SPEC_MISMATCH: ErrorKind
STALE_ROUTING: ErrorKind
NOT_OWNER: ErrorKind
FENCED: ErrorKind
BAD_REQUEST: ErrorKind
UNKNOWN_TASK: ErrorKind
NOT_READY: ErrorKind
WRONG_PEER: ErrorKind
CHECKPOINT_FAILED: ErrorKind
NO_LOG: ErrorKind
NOT_FINITE: ErrorKind
OTHER_PROTOCOL: ErrorKind
NOT_PERMITTED: ErrorKind
MOVE_ENTRY_UNSPECIFIED: MoveEntry
ROWS_CAME: MoveEntry
SLOTS_EMPTIED: MoveEntry
JOINED: MoveEntry
SLICES_TAKEN: MoveEntry
TASK_KIND_UNSPECIFIED: TaskKind
DESCRIBE_DATA: TaskKind
TRAIN: TaskKind
EVALUATE: TaskKind
PREDICT: TaskKind
FINISH_EVALUATION: TaskKind
EXPORT: TaskKind
FINISH_PREDICTION: TaskKind
DESCRIBE_SOURCES: TaskKind
LIST_SOURCES: TaskKind
FAILURE_KIND_UNSPECIFIED: FailureKind
USER_ERROR: FailureKind
USER_CODE: FailureKind
INTERNAL: FailureKind
ENVIRONMENT: FailureKind
SERVER_AWAY: FailureKind
STORAGE: FailureKind

class ArraySpec(_message.Message):
    __slots__ = ("data_type", "shape")
    DATA_TYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    data_type: DataType
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, data_type: _Optional[_Union[DataType, str]] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class ErrorDetail(_message.Message):
    __slots__ = ("kind", "message")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    kind: ErrorKind
    message: str
    def __init__(self, kind: _Optional[_Union[ErrorKind, str]] = ..., message: _Optional[str] = ...) -> None: ...

class TableSpec(_message.Message):
    __slots__ = ("name", "dim", "initializer", "optimizer", "seed", "value_dtype", "frozen", "vocabulary", "admit_after", "expire_after", "max_rows")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    INITIALIZER_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    VALUE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    ADMIT_AFTER_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_AFTER_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    name: str
    dim: int
    initializer: str
    optimizer: str
    seed: int
    value_dtype: str
    frozen: bool
    vocabulary: int
    admit_after: int
    expire_after: int
    max_rows: int
    def __init__(self, name: _Optional[str] = ..., dim: _Optional[int] = ..., initializer: _Optional[str] = ..., optimizer: _Optional[str] = ..., seed: _Optional[int] = ..., value_dtype: _Optional[str] = ..., frozen: bool = ..., vocabulary: _Optional[int] = ..., admit_after: _Optional[int] = ..., expire_after: _Optional[int] = ..., max_rows: _Optional[int] = ...) -> None: ...

class VariableSpec(_message.Message):
    __slots__ = ("name", "shape", "offset")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    offset: int
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., offset: _Optional[int] = ...) -> None: ...

class ModelSpec(_message.Message):
    __slots__ = ("tables", "trainable", "non_trainable", "dense_optimizer")
    TABLES_FIELD_NUMBER: _ClassVar[int]
    TRAINABLE_FIELD_NUMBER: _ClassVar[int]
    NON_TRAINABLE_FIELD_NUMBER: _ClassVar[int]
    DENSE_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[TableSpec]
    trainable: _containers.RepeatedCompositeFieldContainer[VariableSpec]
    non_trainable: _containers.RepeatedCompositeFieldContainer[VariableSpec]
    dense_optimizer: str
    def __init__(self, tables: _Optional[_Iterable[_Union[TableSpec, _Mapping]]] = ..., trainable: _Optional[_Iterable[_Union[VariableSpec, _Mapping]]] = ..., non_trainable: _Optional[_Iterable[_Union[VariableSpec, _Mapping]]] = ..., dense_optimizer: _Optional[str] = ...) -> None: ...

class RoutingTable(_message.Message):
    __slots__ = ("epoch", "servers", "owners", "dense", "absent")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    servers: int
    owners: bytes
    dense: int
    absent: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., servers: _Optional[int] = ..., owners: _Optional[bytes] = ..., dense: _Optional[int] = ..., absent: _Optional[_Iterable[int]] = ...) -> None: ...

class Protocol(_message.Message):
    __slots__ = ("number", "version")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    number: int
    version: str
    def __init__(self, number: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "meant", "caller", "nonce")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    MEANT_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    protocol: Protocol
    meant: str
    caller: str
    nonce: bytes
    def __init__(self, protocol: _Optional[_Union[Protocol, _Mapping]] = ..., meant: _Optional[str] = ..., caller: _Optional[str] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class HelloProof(_message.Message):
    __slots__ = ("nonce", "proof")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    proof: bytes
    def __init__(self, nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ...) -> None: ...

class PushIdentity(_message.Message):
    __slots__ = ("worker", "incarnation", "sequence")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    worker: int
    incarnation: int
    sequence: int
    def __init__(self, worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class LastPush(_message.Message):
    __slots__ = ("identity", "task", "records_done")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    RECORDS_DONE_FIELD_NUMBER: _ClassVar[int]
    identity: PushIdentity
    task: int
    records_done: int
    def __init__(self, identity: _Optional[_Union[PushIdentity, _Mapping]] = ..., task: _Optional[int] = ..., records_done: _Optional[int] = ...) -> None: ...

class JournalPosition(_message.Message):
    __slots__ = ("journal", "number", "checksum")
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    journal: int
    number: int
    checksum: int
    def __init__(self, journal: _Optional[int] = ..., number: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class StackFrame(_message.Message):
    __slots__ = ("where", "line", "function", "code", "own")
    WHERE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    where: str
    line: int
    function: str
    code: str
    own: bool
    def __init__(self, where: _Optional[str] = ..., line: _Optional[int] = ..., function: _Optional[str] = ..., code: _Optional[str] = ..., own: bool = ...) -> None: ...

class ThreadStacks(_message.Message):
    __slots__ = ("threads", "names", "frames", "left_out")
    THREADS_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    threads: int
    names: _containers.RepeatedScalarFieldContainer[str]
    frames: _containers.RepeatedCompositeFieldContainer[StackFrame]
    left_out: int
    def __init__(self, threads: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ..., frames: _Optional[_Iterable[_Union[StackFrame, _Mapping]]] = ..., left_out: _Optional[int] = ...) -> None: ...

class ProcessStacks(_message.Message):
    __slots__ = ("process", "incarnation", "threads", "stacks", "problem", "question")
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    STACKS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    process: str
    incarnation: int
    threads: int
    stacks: _containers.RepeatedCompositeFieldContainer[ThreadStacks]
    problem: str
    question: int
    def __init__(self, process: _Optional[str] = ..., incarnation: _Optional[int] = ..., threads: _Optional[int] = ..., stacks: _Optional[_Iterable[_Union[ThreadStacks, _Mapping]]] = ..., problem: _Optional[str] = ..., question: _Optional[int] = ...) -> None: ...

class StacksRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FindIdRequest(_message.Message):
    __slots__ = ("table", "id")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    table: str
    id: int
    def __init__(self, table: _Optional[str] = ..., id: _Optional[int] = ...) -> None: ...

class FoundId(_message.Message):
    __slots__ = ("id", "table", "state", "slot", "server", "servers", "uses", "last_step", "step", "norm", "slots", "removal", "last_time", "clock")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NOTHING: _ClassVar[FoundId.State]
        COUNTED: _ClassVar[FoundId.State]
        ROW: _ClassVar[FoundId.State]
    NOTHING: FoundId.State
    COUNTED: FoundId.State
    ROW: FoundId.State
    class Norm(_message.Message):
        __slots__ = ("slot", "norm")
        SLOT_FIELD_NUMBER: _ClassVar[int]
        NORM_FIELD_NUMBER: _ClassVar[int]
        slot: str
        norm: float
        def __init__(self, slot: _Optional[str] = ..., norm: _Optional[float] = ...) -> None: ...
    class Removal(_message.Message):
        __slots__ = ("step", "event_time", "eviction")
        STEP_FIELD_NUMBER: _ClassVar[int]
        EVENT_TIME_FIELD_NUMBER: _ClassVar[int]
        EVICTION_FIELD_NUMBER: _ClassVar[int]
        step: int
        event_time: int
        eviction: bool
        def __init__(self, step: _Optional[int] = ..., event_time: _Optional[int] = ..., eviction: bool = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NORM_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    REMOVAL_FIELD_NUMBER: _ClassVar[int]
    LAST_TIME_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    id: int
    table: TableSpec
    state: FoundId.State
    slot: int
    server: int
    servers: int
    uses: int
    last_step: int
    step: int
    norm: float
    slots: _containers.RepeatedCompositeFieldContainer[FoundId.Norm]
    removal: FoundId.Removal
    last_time: int
    clock: int
    def __init__(self, id: _Optional[int] = ..., table: _Optional[_Union[TableSpec, _Mapping]] = ..., state: _Optional[_Union[FoundId.State, str]] = ..., slot: _Optional[int] = ..., server: _Optional[int] = ..., servers: _Optional[int] = ..., uses: _Optional[int] = ..., last_step: _Optional[int] = ..., step: _Optional[int] = ..., norm: _Optional[float] = ..., slots: _Optional[_Iterable[_Union[FoundId.Norm, _Mapping]]] = ..., removal: _Optional[_Union[FoundId.Removal, _Mapping]] = ..., last_time: _Optional[int] = ..., clock: _Optional[int] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("model", "caller", "known_version", "task", "records_done")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    KNOWN_VERSION_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    RECORDS_DONE_FIELD_NUMBER: _ClassVar[int]
    model: ModelSpec
    caller: PushIdentity
    known_version: int
    task: int
    records_done: int
    def __init__(self, model: _Optional[_Union[ModelSpec, _Mapping]] = ..., caller: _Optional[_Union[PushIdentity, _Mapping]] = ..., known_version: _Optional[int] = ..., task: _Optional[int] = ..., records_done: _Optional[int] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ("server", "dense_initialized", "version", "routing_epoch")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    DENSE_INITIALIZED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROUTING_EPOCH_FIELD_NUMBER: _ClassVar[int]
    server: int
    dense_initialized: bool
    version: int
    routing_epoch: int
    def __init__(self, server: _Optional[int] = ..., dense_initialized: bool = ..., version: _Optional[int] = ..., routing_epoch: _Optional[int] = ...) -> None: ...

class InitializeDenseRequest(_message.Message):
    __slots__ = ("arrays",)
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    arrays: _containers.RepeatedCompositeFieldContainer[ArraySpec]
    def __init__(self, arrays: _Optional[_Iterable[_Union[ArraySpec, _Mapping]]] = ...) -> None: ...

class InitializeDenseReply(_message.Message):
    __slots__ = ("initialized", "arrays")
    INITIALIZED_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    initialized: bool
    arrays: _containers.RepeatedCompositeFieldContainer[ArraySpec]
    def __init__(self, initialized: bool = ..., arrays: _Optional[_Iterable[_Union[ArraySpec, _Mapping]]] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("caller", "routing_epoch", "tables", "ids_of", "dense_version", "training", "value_type", "whole_updates", "arrays", "after")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    ROUTING_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    IDS_OF_FIELD_NUMBER: _ClassVar[int]
    DENSE_VERSION_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    VALUE_TYPE_FIELD_NUMBER: _ClassVar[int]
    WHOLE_UPDATES_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    caller: PushIdentity
    routing_epoch: int
    tables: _containers.RepeatedScalarFieldContainer[int]
    ids_of: _containers.RepeatedScalarFieldContainer[int]
    dense_version: int
    training: bool
    value_type: DataType
    whole_updates: bool
    arrays: _containers.RepeatedCompositeFieldContainer[ArraySpec]
    after: int
    def __init__(self, caller: _Optional[_Union[PushIdentity, _Mapping]] = ..., routing_epoch: _Optional[int] = ..., tables: _Optional[_Iterable[int]] = ..., ids_of: _Optional[_Iterable[int]] = ..., dense_version: _Optional[int] = ..., training: bool = ..., value_type: _Optional[_Union[DataType, str]] = ..., whole_updates: bool = ..., arrays: _Optional[_Iterable[_Union[ArraySpec, _Mapping]]] = ..., after: _Optional[int] = ...) -> None: ...

class PullReply(_message.Message):
    __slots__ = ("version", "has_dense", "time", "applied", "update", "arrays")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HAS_DENSE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    version: int
    has_dense: bool
    time: float
    applied: int
    update: int
    arrays: _containers.RepeatedCompositeFieldContainer[ArraySpec]
    def __init__(self, version: _Optional[int] = ..., has_dense: bool = ..., time: _Optional[float] = ..., applied: _Optional[int] = ..., update: _Optional[int] = ..., arrays: _Optional[_Iterable[_Union[ArraySpec, _Mapping]]] = ...) -> None: ...

class PushRequest(_message.Message):
    __slots__ = ("identity", "routing_epoch", "tables", "ids_of", "scales", "has_dense", "learning_rate", "modulate_rate", "pulled_version", "pulled_time", "own_pushes", "task", "records_done", "hold", "arrays", "table_rates", "event_time")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ROUTING_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    IDS_OF_FIELD_NUMBER: _ClassVar[int]
    SCALES_FIELD_NUMBER: _ClassVar[int]
    HAS_DENSE_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    MODULATE_RATE_FIELD_NUMBER: _ClassVar[int]
    PULLED_VERSION_FIELD_NUMBER: _ClassVar[int]
    PULLED_TIME_FIELD_NUMBER: _ClassVar[int]
    OWN_PUSHES_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    RECORDS_DONE_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    TABLE_RATES_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_FIELD_NUMBER: _ClassVar[int]
    identity: PushIdentity
    routing_epoch: int
    tables: _containers.RepeatedScalarFieldContainer[int]
    ids_of: _containers.RepeatedScalarFieldContainer[int]
    scales: _containers.RepeatedScalarFieldContainer[float]
    has_dense: bool
    learning_rate: float
    modulate_rate: bool
    pulled_version: int
    pulled_time: float
    own_pushes: int
    task: int
    records_done: int
    hold: int
    arrays: _containers.RepeatedCompositeFieldContainer[ArraySpec]
    table_rates: _containers.RepeatedScalarFieldContainer[float]
    event_time: int
    def __init__(self, identity: _Optional[_Union[PushIdentity, _Mapping]] = ..., routing_epoch: _Optional[int] = ..., tables: _Optional[_Iterable[int]] = ..., ids_of: _Optional[_Iterable[int]] = ..., scales: _Optional[_Iterable[float]] = ..., has_dense: bool = ..., learning_rate: _Optional[float] = ..., modulate_rate: bool = ..., pulled_version: _Optional[int] = ..., pulled_time: _Optional[float] = ..., own_pushes: _Optional[int] = ..., task: _Optional[int] = ..., records_done: _Optional[int] = ..., hold: _Optional[int] = ..., arrays: _Optional[_Iterable[_Union[ArraySpec, _Mapping]]] = ..., table_rates: _Optional[_Iterable[float]] = ..., event_time: _Optional[int] = ...) -> None: ...

class PushReply(_message.Message):
    __slots__ = ("version", "applied", "staleness", "arrays")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    version: int
    applied: bool
    staleness: int
    arrays: _containers.RepeatedCompositeFieldContainer[ArraySpec]
    def __init__(self, version: _Optional[int] = ..., applied: bool = ..., staleness: _Optional[int] = ..., arrays: _Optional[_Iterable[_Union[ArraySpec, _Mapping]]] = ...) -> None: ...

class ReadTableRequest(_message.Message):
    __slots__ = ("table",)
    TABLE_FIELD_NUMBER: _ClassVar[int]
    table: int
    def __init__(self, table: _Optional[int] = ...) -> None: ...

class ReadTableReply(_message.Message):
    __slots__ = ("arrays",)
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    arrays: _containers.RepeatedCompositeFieldContainer[ArraySpec]
    def __init__(self, arrays: _Optional[_Iterable[_Union[ArraySpec, _Mapping]]] = ...) -> None: ...

class AssignRowsRequest(_message.Message):
    __slots__ = ("routing_epoch", "table", "arrays")
    ROUTING_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    routing_epoch: int
    table: int
    arrays: _containers.RepeatedCompositeFieldContainer[ArraySpec]
    def __init__(self, routing_epoch: _Optional[int] = ..., table: _Optional[int] = ..., arrays: _Optional[_Iterable[_Union[ArraySpec, _Mapping]]] = ...) -> None: ...

class AssignRowsReply(_message.Message):
    __slots__ = ("arrays",)
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    arrays: _containers.RepeatedCompositeFieldContainer[ArraySpec]
    def __init__(self, arrays: _Optional[_Iterable[_Union[ArraySpec, _Mapping]]] = ...) -> None: ...

class FenceRequest(_message.Message):
    __slots__ = ("worker", "incarnation", "kept")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    worker: int
    incarnation: int
    kept: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., kept: _Optional[_Iterable[int]] = ...) -> None: ...

class FenceReply(_message.Message):
    __slots__ = ("sequence", "task", "records_done")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    RECORDS_DONE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    task: int
    records_done: int
    def __init__(self, sequence: _Optional[int] = ..., task: _Optional[int] = ..., records_done: _Optional[int] = ...) -> None: ...

class GradientId(_message.Message):
    __slots__ = ("worker", "incarnation", "number")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    worker: int
    incarnation: int
    number: int
    def __init__(self, worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class ApplyUpdateRequest(_message.Message):
    __slots__ = ("update", "gradients", "dropped", "after")
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    update: int
    gradients: _containers.RepeatedCompositeFieldContainer[GradientId]
    dropped: _containers.RepeatedCompositeFieldContainer[GradientId]
    after: int
    def __init__(self, update: _Optional[int] = ..., gradients: _Optional[_Iterable[_Union[GradientId, _Mapping]]] = ..., dropped: _Optional[_Iterable[_Union[GradientId, _Mapping]]] = ..., after: _Optional[int] = ...) -> None: ...

class ApplyUpdateReply(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class ServerStatusRequest(_message.Message):
    __slots__ = ("onlooker", "pushes", "journal", "loads")
    ONLOOKER_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    onlooker: bool
    pushes: bool
    journal: JournalPosition
    loads: bool
    def __init__(self, onlooker: bool = ..., pushes: bool = ..., journal: _Optional[_Union[JournalPosition, _Mapping]] = ..., loads: bool = ...) -> None: ...

class Distribution(_message.Message):
    __slots__ = ("buckets", "count", "sum", "maximum")
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    buckets: _containers.RepeatedScalarFieldContainer[int]
    count: int
    sum: float
    maximum: float
    def __init__(self, buckets: _Optional[_Iterable[int]] = ..., count: _Optional[int] = ..., sum: _Optional[float] = ..., maximum: _Optional[float] = ...) -> None: ...

class RemovedIds(_message.Message):
    __slots__ = ("expired", "evicted", "counts")
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    expired: int
    evicted: int
    counts: int
    def __init__(self, expired: _Optional[int] = ..., evicted: _Optional[int] = ..., counts: _Optional[int] = ...) -> None: ...

class TableStatus(_message.Message):
    __slots__ = ("name", "rows", "memory_bytes", "row_norms", "counting", "removed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROW_NORMS_FIELD_NUMBER: _ClassVar[int]
    COUNTING_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows: int
    memory_bytes: int
    row_norms: Distribution
    counting: int
    removed: RemovedIds
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., row_norms: _Optional[_Union[Distribution, _Mapping]] = ..., counting: _Optional[int] = ..., removed: _Optional[_Union[RemovedIds, _Mapping]] = ...) -> None: ...

class ServerStatus(_message.Message):
    __slots__ = ("server", "version", "routing_epoch", "registered", "pulls", "pushes", "duplicate_pushes", "tables", "dense_elements", "staleness", "age", "pending", "unprotected", "absences", "absent_seconds", "wants_checkpoint", "log_bytes", "held_log_bytes", "has", "journal", "seconds", "cpu_seconds", "event_time", "clock_doubt", "memory_bytes", "memory_limit", "loads", "load_seconds", "slow_tls")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROUTING_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    PULLS_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_PUSHES_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    DENSE_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    UNPROTECTED_FIELD_NUMBER: _ClassVar[int]
    ABSENCES_FIELD_NUMBER: _ClassVar[int]
    ABSENT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WANTS_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    HAS_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    CPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_FIELD_NUMBER: _ClassVar[int]
    CLOCK_DOUBT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    LOAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SLOW_TLS_FIELD_NUMBER: _ClassVar[int]
    server: int
    version: int
    routing_epoch: int
    registered: bool
    pulls: int
    pushes: int
    duplicate_pushes: int
    tables: _containers.RepeatedCompositeFieldContainer[TableStatus]
    dense_elements: int
    staleness: Distribution
    age: Distribution
    pending: int
    unprotected: str
    absences: int
    absent_seconds: float
    wants_checkpoint: bool
    log_bytes: int
    held_log_bytes: int
    has: _containers.RepeatedCompositeFieldContainer[LastPush]
    journal: JournalPosition
    seconds: float
    cpu_seconds: float
    event_time: int
    clock_doubt: str
    memory_bytes: int
    memory_limit: int
    loads: _containers.RepeatedScalarFieldContainer[int]
    load_seconds: float
    slow_tls: str
    def __init__(self, server: _Optional[int] = ..., version: _Optional[int] = ..., routing_epoch: _Optional[int] = ..., registered: bool = ..., pulls: _Optional[int] = ..., pushes: _Optional[int] = ..., duplicate_pushes: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[TableStatus, _Mapping]]] = ..., dense_elements: _Optional[int] = ..., staleness: _Optional[_Union[Distribution, _Mapping]] = ..., age: _Optional[_Union[Distribution, _Mapping]] = ..., pending: _Optional[int] = ..., unprotected: _Optional[str] = ..., absences: _Optional[int] = ..., absent_seconds: _Optional[float] = ..., wants_checkpoint: bool = ..., log_bytes: _Optional[int] = ..., held_log_bytes: _Optional[int] = ..., has: _Optional[_Iterable[_Union[LastPush, _Mapping]]] = ..., journal: _Optional[_Union[JournalPosition, _Mapping]] = ..., seconds: _Optional[float] = ..., cpu_seconds: _Optional[float] = ..., event_time: _Optional[int] = ..., clock_doubt: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., memory_limit: _Optional[int] = ..., loads: _Optional[_Iterable[int]] = ..., load_seconds: _Optional[float] = ..., slow_tls: _Optional[str] = ...) -> None: ...

class BeginCheckpointRequest(_message.Message):
    __slots__ = ("number", "nonce")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    number: int
    nonce: str
    def __init__(self, number: _Optional[int] = ..., nonce: _Optional[str] = ...) -> None: ...

class BeginCheckpointReply(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class WriteShardRequest(_message.Message):
    __slots__ = ("number", "nonce")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    number: int
    nonce: str
    def __init__(self, number: _Optional[int] = ..., nonce: _Optional[str] = ...) -> None: ...

class WriteShardReply(_message.Message):
    __slots__ = ("shard", "empty")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    EMPTY_FIELD_NUMBER: _ClassVar[int]
    shard: str
    empty: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, shard: _Optional[str] = ..., empty: _Optional[_Iterable[str]] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("number", "nonce", "routing_epoch", "life", "since", "whole")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    ROUTING_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    number: int
    nonce: str
    routing_epoch: int
    life: str
    since: int
    whole: bytes
    def __init__(self, number: _Optional[int] = ..., nonce: _Optional[str] = ..., routing_epoch: _Optional[int] = ..., life: _Optional[str] = ..., since: _Optional[int] = ..., whole: _Optional[bytes] = ...) -> None: ...

class PublishReply(_message.Message):
    __slots__ = ("share", "seconds")
    SHARE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    share: str
    seconds: float
    def __init__(self, share: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class DropCheckpointRequest(_message.Message):
    __slots__ = ("number", "nonce")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    number: int
    nonce: str
    def __init__(self, number: _Optional[int] = ..., nonce: _Optional[str] = ...) -> None: ...

class DropCheckpointReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CompleteCheckpointRequest(_message.Message):
    __slots__ = ("number", "nonce")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    number: int
    nonce: str
    def __init__(self, number: _Optional[int] = ..., nonce: _Optional[str] = ...) -> None: ...

class CompleteCheckpointReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LogBase(_message.Message):
    __slots__ = ("log", "server", "incarnation", "applied", "model", "initial", "journal", "update", "epoch", "dense", "dense_epoch")
    LOG_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INITIAL_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    DENSE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    log: str
    server: int
    incarnation: int
    applied: _containers.RepeatedCompositeFieldContainer[PushIdentity]
    model: ModelSpec
    initial: bytes
    journal: JournalPosition
    update: int
    epoch: int
    dense: int
    dense_epoch: int
    def __init__(self, log: _Optional[str] = ..., server: _Optional[int] = ..., incarnation: _Optional[int] = ..., applied: _Optional[_Iterable[_Union[PushIdentity, _Mapping]]] = ..., model: _Optional[_Union[ModelSpec, _Mapping]] = ..., initial: _Optional[bytes] = ..., journal: _Optional[_Union[JournalPosition, _Mapping]] = ..., update: _Optional[int] = ..., epoch: _Optional[int] = ..., dense: _Optional[int] = ..., dense_epoch: _Optional[int] = ...) -> None: ...

class SweepChoice(_message.Message):
    __slots__ = ("sure", "maybe", "below")
    SURE_FIELD_NUMBER: _ClassVar[int]
    MAYBE_FIELD_NUMBER: _ClassVar[int]
    BELOW_FIELD_NUMBER: _ClassVar[int]
    sure: _containers.RepeatedScalarFieldContainer[int]
    maybe: _containers.RepeatedScalarFieldContainer[int]
    below: int
    def __init__(self, sure: _Optional[_Iterable[int]] = ..., maybe: _Optional[_Iterable[int]] = ..., below: _Optional[int] = ...) -> None: ...

class SweepPlan(_message.Message):
    __slots__ = ("table", "step", "eviction", "rows", "counts", "parts", "excess_rows", "excess_counts")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EVICTION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    EXCESS_ROWS_FIELD_NUMBER: _ClassVar[int]
    EXCESS_COUNTS_FIELD_NUMBER: _ClassVar[int]
    table: int
    step: int
    eviction: bool
    rows: SweepChoice
    counts: SweepChoice
    parts: int
    excess_rows: int
    excess_counts: int
    def __init__(self, table: _Optional[int] = ..., step: _Optional[int] = ..., eviction: bool = ..., rows: _Optional[_Union[SweepChoice, _Mapping]] = ..., counts: _Optional[_Union[SweepChoice, _Mapping]] = ..., parts: _Optional[int] = ..., excess_rows: _Optional[int] = ..., excess_counts: _Optional[int] = ...) -> None: ...

class Sweep(_message.Message):
    __slots__ = ("plan", "part", "arrays")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    plan: SweepPlan
    part: int
    arrays: _containers.RepeatedCompositeFieldContainer[ArraySpec]
    def __init__(self, plan: _Optional[_Union[SweepPlan, _Mapping]] = ..., part: _Optional[int] = ..., arrays: _Optional[_Iterable[_Union[ArraySpec, _Mapping]]] = ...) -> None: ...

class LogEntry(_message.Message):
    __slots__ = ("log", "server", "incarnation", "step", "staleness", "journal", "sweep", "update", "move", "moved")
    LOG_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    SWEEP_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    log: str
    server: int
    incarnation: int
    step: int
    staleness: int
    journal: JournalPosition
    sweep: bool
    update: bool
    move: int
    moved: MoveEntry
    def __init__(self, log: _Optional[str] = ..., server: _Optional[int] = ..., incarnation: _Optional[int] = ..., step: _Optional[int] = ..., staleness: _Optional[int] = ..., journal: _Optional[_Union[JournalPosition, _Mapping]] = ..., sweep: bool = ..., update: bool = ..., move: _Optional[int] = ..., moved: _Optional[_Union[MoveEntry, str]] = ...) -> None: ...

class BeginLogRequest(_message.Message):
    __slots__ = ("base",)
    BASE_FIELD_NUMBER: _ClassVar[int]
    base: LogBase
    def __init__(self, base: _Optional[_Union[LogBase, _Mapping]] = ...) -> None: ...

class BeginLogReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LogGroup(_message.Message):
    __slots__ = ("first", "entries", "sizes")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    first: int
    entries: _containers.RepeatedCompositeFieldContainer[LogEntry]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, first: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[LogEntry, _Mapping]]] = ..., sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class AppendLogReply(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: int
    def __init__(self, position: _Optional[int] = ...) -> None: ...

class DropLogRequest(_message.Message):
    __slots__ = ("log", "server", "incarnation", "step", "applied", "update")
    LOG_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    log: str
    server: int
    incarnation: int
    step: int
    applied: _containers.RepeatedCompositeFieldContainer[PushIdentity]
    update: int
    def __init__(self, log: _Optional[str] = ..., server: _Optional[int] = ..., incarnation: _Optional[int] = ..., step: _Optional[int] = ..., applied: _Optional[_Iterable[_Union[PushIdentity, _Mapping]]] = ..., update: _Optional[int] = ...) -> None: ...

class DropLogReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TakeLogRequest(_message.Message):
    __slots__ = ("server", "incarnation")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    server: int
    incarnation: int
    def __init__(self, server: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class ReadyRequest(_message.Message):
    __slots__ = ("method", "bytes", "caller")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    method: str
    bytes: int
    caller: PushIdentity
    def __init__(self, method: _Optional[str] = ..., bytes: _Optional[int] = ..., caller: _Optional[_Union[PushIdentity, _Mapping]] = ...) -> None: ...

class ReadyReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetRoutingReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BeginMoveRequest(_message.Message):
    __slots__ = ("table", "model", "step", "attempt")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    table: RoutingTable
    model: ModelSpec
    step: int
    attempt: int
    def __init__(self, table: _Optional[_Union[RoutingTable, _Mapping]] = ..., model: _Optional[_Union[ModelSpec, _Mapping]] = ..., step: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class BeginMoveReply(_message.Message):
    __slots__ = ("model", "step")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    model: ModelSpec
    step: int
    def __init__(self, model: _Optional[_Union[ModelSpec, _Mapping]] = ..., step: _Optional[int] = ...) -> None: ...

class SendRowsRequest(_message.Message):
    __slots__ = ("table", "addresses", "since", "attempt", "dense")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    table: RoutingTable
    addresses: _containers.RepeatedScalarFieldContainer[str]
    since: int
    attempt: int
    dense: bool
    def __init__(self, table: _Optional[_Union[RoutingTable, _Mapping]] = ..., addresses: _Optional[_Iterable[str]] = ..., since: _Optional[int] = ..., attempt: _Optional[int] = ..., dense: bool = ...) -> None: ...

class SendRowsReply(_message.Message):
    __slots__ = ("next", "rows", "bytes", "seconds")
    NEXT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    next: int
    rows: int
    bytes: int
    seconds: float
    def __init__(self, next: _Optional[int] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class TakeRowsRequest(_message.Message):
    __slots__ = ("epoch", "table", "counting", "step", "arrays", "attempt", "expected", "dense")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    COUNTING_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    table: int
    counting: bool
    step: int
    arrays: _containers.RepeatedCompositeFieldContainer[ArraySpec]
    attempt: int
    expected: int
    dense: DensePiece
    def __init__(self, epoch: _Optional[int] = ..., table: _Optional[int] = ..., counting: bool = ..., step: _Optional[int] = ..., arrays: _Optional[_Iterable[_Union[ArraySpec, _Mapping]]] = ..., attempt: _Optional[int] = ..., expected: _Optional[int] = ..., dense: _Optional[_Union[DensePiece, _Mapping]] = ...) -> None: ...

class DensePiece(_message.Message):
    __slots__ = ("vector", "start", "servers")
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    vector: int
    start: int
    servers: int
    def __init__(self, vector: _Optional[int] = ..., start: _Optional[int] = ..., servers: _Optional[int] = ...) -> None: ...

class TakeRowsReply(_message.Message):
    __slots__ = ("arrays",)
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    arrays: _containers.RepeatedCompositeFieldContainer[ArraySpec]
    def __init__(self, arrays: _Optional[_Iterable[_Union[ArraySpec, _Mapping]]] = ...) -> None: ...

class FreezeRequest(_message.Message):
    __slots__ = ("epoch", "until", "attempt")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    until: _containers.RepeatedCompositeFieldContainer[PushIdentity]
    attempt: int
    def __init__(self, epoch: _Optional[int] = ..., until: _Optional[_Iterable[_Union[PushIdentity, _Mapping]]] = ..., attempt: _Optional[int] = ...) -> None: ...

class FreezeReply(_message.Message):
    __slots__ = ("has", "step", "version", "clock", "update", "held")
    HAS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    has: _containers.RepeatedCompositeFieldContainer[LastPush]
    step: int
    version: int
    clock: str
    update: int
    held: _containers.RepeatedCompositeFieldContainer[GradientId]
    def __init__(self, has: _Optional[_Iterable[_Union[LastPush, _Mapping]]] = ..., step: _Optional[int] = ..., version: _Optional[int] = ..., clock: _Optional[str] = ..., update: _Optional[int] = ..., held: _Optional[_Iterable[_Union[GradientId, _Mapping]]] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("epoch", "has", "step", "version", "fences", "clock", "attempt", "update")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HAS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FENCES_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    has: _containers.RepeatedCompositeFieldContainer[LastPush]
    step: int
    version: int
    fences: _containers.RepeatedCompositeFieldContainer[FenceRequest]
    clock: str
    attempt: int
    update: int
    def __init__(self, epoch: _Optional[int] = ..., has: _Optional[_Iterable[_Union[LastPush, _Mapping]]] = ..., step: _Optional[int] = ..., version: _Optional[int] = ..., fences: _Optional[_Iterable[_Union[FenceRequest, _Mapping]]] = ..., clock: _Optional[str] = ..., attempt: _Optional[int] = ..., update: _Optional[int] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EndMoveRequest(_message.Message):
    __slots__ = ("table", "attempt")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    table: RoutingTable
    attempt: int
    def __init__(self, table: _Optional[_Union[RoutingTable, _Mapping]] = ..., attempt: _Optional[int] = ...) -> None: ...

class EndMoveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ShutdownRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ShutdownReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RegisterServerRequest(_message.Message):
    __slots__ = ("server", "incarnation", "address", "restored", "replayed", "has", "checkpoint", "journal", "update", "held")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    HAS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    server: int
    incarnation: int
    address: str
    restored: str
    replayed: int
    has: _containers.RepeatedCompositeFieldContainer[LastPush]
    checkpoint: int
    journal: JournalPosition
    update: int
    held: _containers.RepeatedCompositeFieldContainer[GradientId]
    def __init__(self, server: _Optional[int] = ..., incarnation: _Optional[int] = ..., address: _Optional[str] = ..., restored: _Optional[str] = ..., replayed: _Optional[int] = ..., has: _Optional[_Iterable[_Union[LastPush, _Mapping]]] = ..., checkpoint: _Optional[int] = ..., journal: _Optional[_Union[JournalPosition, _Mapping]] = ..., update: _Optional[int] = ..., held: _Optional[_Iterable[_Union[GradientId, _Mapping]]] = ...) -> None: ...

class RegisterServerReply(_message.Message):
    __slots__ = ("routing", "fences")
    ROUTING_FIELD_NUMBER: _ClassVar[int]
    FENCES_FIELD_NUMBER: _ClassVar[int]
    routing: RoutingTable
    fences: _containers.RepeatedCompositeFieldContainer[FenceRequest]
    def __init__(self, routing: _Optional[_Union[RoutingTable, _Mapping]] = ..., fences: _Optional[_Iterable[_Union[FenceRequest, _Mapping]]] = ...) -> None: ...

class WorkerMetRequest(_message.Message):
    __slots__ = ("server", "incarnation", "acknowledged")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    server: int
    incarnation: int
    acknowledged: LastPush
    def __init__(self, server: _Optional[int] = ..., incarnation: _Optional[int] = ..., acknowledged: _Optional[_Union[LastPush, _Mapping]] = ...) -> None: ...

class WorkerMetReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RestoreRequest(_message.Message):
    __slots__ = ("protocol", "server", "incarnation")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    protocol: Protocol
    server: int
    incarnation: int
    def __init__(self, protocol: _Optional[_Union[Protocol, _Mapping]] = ..., server: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class RestoreReply(_message.Message):
    __slots__ = ("again", "checkpoints", "nonces", "replay", "holder", "whole_job", "routing", "joins")
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    NONCES_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    WHOLE_JOB_FIELD_NUMBER: _ClassVar[int]
    ROUTING_FIELD_NUMBER: _ClassVar[int]
    JOINS_FIELD_NUMBER: _ClassVar[int]
    again: bool
    checkpoints: _containers.RepeatedScalarFieldContainer[int]
    nonces: _containers.RepeatedScalarFieldContainer[str]
    replay: bool
    holder: str
    whole_job: bool
    routing: RoutingTable
    joins: bool
    def __init__(self, again: bool = ..., checkpoints: _Optional[_Iterable[int]] = ..., nonces: _Optional[_Iterable[str]] = ..., replay: bool = ..., holder: _Optional[str] = ..., whole_job: bool = ..., routing: _Optional[_Union[RoutingTable, _Mapping]] = ..., joins: bool = ...) -> None: ...

class ServerProgress(_message.Message):
    __slots__ = ("what", "done", "total")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    what: str
    done: int
    total: int
    def __init__(self, what: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class ReportProgressRequest(_message.Message):
    __slots__ = ("server", "incarnation", "progress")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    server: int
    incarnation: int
    progress: ServerProgress
    def __init__(self, server: _Optional[int] = ..., incarnation: _Optional[int] = ..., progress: _Optional[_Union[ServerProgress, _Mapping]] = ...) -> None: ...

class ReportProgressReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("server", "incarnation", "seconds", "closed")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    server: int
    incarnation: int
    seconds: float
    closed: bool
    def __init__(self, server: _Optional[int] = ..., incarnation: _Optional[int] = ..., seconds: _Optional[float] = ..., closed: bool = ...) -> None: ...

class DrainReply(_message.Message):
    __slots__ = ("wait", "outcome", "serve")
    WAIT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    SERVE_FIELD_NUMBER: _ClassVar[int]
    wait: bool
    outcome: str
    serve: bool
    def __init__(self, wait: bool = ..., outcome: _Optional[str] = ..., serve: bool = ...) -> None: ...

class RegisterWorkerRequest(_message.Message):
    __slots__ = ("protocol", "worker", "incarnation", "journal")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    protocol: Protocol
    worker: int
    incarnation: int
    journal: JournalPosition
    def __init__(self, protocol: _Optional[_Union[Protocol, _Mapping]] = ..., worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., journal: _Optional[_Union[JournalPosition, _Mapping]] = ...) -> None: ...

class RegisterWorkerReply(_message.Message):
    __slots__ = ("routing", "servers", "data_known")
    ROUTING_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    DATA_KNOWN_FIELD_NUMBER: _ClassVar[int]
    routing: RoutingTable
    servers: _containers.RepeatedScalarFieldContainer[str]
    data_known: bool
    def __init__(self, routing: _Optional[_Union[RoutingTable, _Mapping]] = ..., servers: _Optional[_Iterable[str]] = ..., data_known: bool = ...) -> None: ...

class GetRoutingRequest(_message.Message):
    __slots__ = ("addresses_only",)
    ADDRESSES_ONLY_FIELD_NUMBER: _ClassVar[int]
    addresses_only: bool
    def __init__(self, addresses_only: bool = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("source", "start", "end")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    source: str
    start: int
    end: int
    def __init__(self, source: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("id", "kind", "range", "epoch", "evaluation", "states", "position", "skipped", "data", "sources", "windows", "token")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    id: int
    kind: TaskKind
    range: Range
    epoch: int
    evaluation: int
    states: MetricStates
    position: int
    skipped: _containers.RepeatedScalarFieldContainer[int]
    data: str
    sources: _containers.RepeatedScalarFieldContainer[str]
    windows: _containers.RepeatedScalarFieldContainer[int]
    token: str
    def __init__(self, id: _Optional[int] = ..., kind: _Optional[_Union[TaskKind, str]] = ..., range: _Optional[_Union[Range, _Mapping]] = ..., epoch: _Optional[int] = ..., evaluation: _Optional[int] = ..., states: _Optional[_Union[MetricStates, _Mapping]] = ..., position: _Optional[int] = ..., skipped: _Optional[_Iterable[int]] = ..., data: _Optional[str] = ..., sources: _Optional[_Iterable[str]] = ..., windows: _Optional[_Iterable[int]] = ..., token: _Optional[str] = ...) -> None: ...

class GetTaskRequest(_message.Message):
    __slots__ = ("worker", "incarnation", "held", "journal")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    worker: int
    incarnation: int
    held: int
    journal: JournalPosition
    def __init__(self, worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., held: _Optional[int] = ..., journal: _Optional[_Union[JournalPosition, _Mapping]] = ...) -> None: ...

class GetTaskReply(_message.Message):
    __slots__ = ("task", "wait_seconds", "finished", "clock", "rate_reductions", "journal")
    TASK_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    RATE_REDUCTIONS_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    task: Task
    wait_seconds: float
    finished: bool
    clock: int
    rate_reductions: int
    journal: JournalPosition
    def __init__(self, task: _Optional[_Union[Task, _Mapping]] = ..., wait_seconds: _Optional[float] = ..., finished: bool = ..., clock: _Optional[int] = ..., rate_reductions: _Optional[int] = ..., journal: _Optional[_Union[JournalPosition, _Mapping]] = ...) -> None: ...

class ClockRequest(_message.Message):
    __slots__ = ("worker", "incarnation", "clock")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    worker: int
    incarnation: int
    clock: int
    def __init__(self, worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., clock: _Optional[int] = ...) -> None: ...

class ClockReply(_message.Message):
    __slots__ = ("slowest", "next")
    SLOWEST_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    slowest: int
    next: int
    def __init__(self, slowest: _Optional[int] = ..., next: _Optional[int] = ...) -> None: ...

class JoinUpdateRequest(_message.Message):
    __slots__ = ("worker", "incarnation")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    worker: int
    incarnation: int
    def __init__(self, worker: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class JoinUpdateReply(_message.Message):
    __slots__ = ("joined", "update")
    JOINED_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    joined: bool
    update: int
    def __init__(self, joined: bool = ..., update: _Optional[int] = ...) -> None: ...

class OfferGradientRequest(_message.Message):
    __slots__ = ("worker", "incarnation", "number", "update", "task", "records_done", "ready")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    RECORDS_DONE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    worker: int
    incarnation: int
    number: int
    update: int
    task: int
    records_done: int
    ready: bool
    def __init__(self, worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., number: _Optional[int] = ..., update: _Optional[int] = ..., task: _Optional[int] = ..., records_done: _Optional[int] = ..., ready: bool = ...) -> None: ...

class OfferGradientReply(_message.Message):
    __slots__ = ("admitted", "next")
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    admitted: bool
    next: int
    def __init__(self, admitted: bool = ..., next: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("worker", "incarnation", "task", "records_done", "version", "loss", "loss_batches", "stage_seconds", "steps", "left_out", "left_out_records", "left_out_why", "acknowledged", "waits_for", "busy_seconds", "busy_with", "longest_seconds", "journal", "stacks", "steps_done", "learning_rate", "pipeline_depth", "pipeline_why")
    class StageSecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    RECORDS_DONE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    LOSS_BATCHES_FIELD_NUMBER: _ClassVar[int]
    STAGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_RECORDS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_WHY_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    BUSY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BUSY_WITH_FIELD_NUMBER: _ClassVar[int]
    LONGEST_SECONDS_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    STACKS_FIELD_NUMBER: _ClassVar[int]
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_DEPTH_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_WHY_FIELD_NUMBER: _ClassVar[int]
    worker: int
    incarnation: int
    task: int
    records_done: int
    version: int
    loss: float
    loss_batches: int
    stage_seconds: _containers.ScalarMap[str, float]
    steps: _containers.RepeatedCompositeFieldContainer[StepLoss]
    left_out: int
    left_out_records: int
    left_out_why: str
    acknowledged: int
    waits_for: str
    busy_seconds: float
    busy_with: str
    longest_seconds: float
    journal: JournalPosition
    stacks: ProcessStacks
    steps_done: int
    learning_rate: float
    pipeline_depth: int
    pipeline_why: str
    def __init__(self, worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., task: _Optional[int] = ..., records_done: _Optional[int] = ..., version: _Optional[int] = ..., loss: _Optional[float] = ..., loss_batches: _Optional[int] = ..., stage_seconds: _Optional[_Mapping[str, float]] = ..., steps: _Optional[_Iterable[_Union[StepLoss, _Mapping]]] = ..., left_out: _Optional[int] = ..., left_out_records: _Optional[int] = ..., left_out_why: _Optional[str] = ..., acknowledged: _Optional[int] = ..., waits_for: _Optional[str] = ..., busy_seconds: _Optional[float] = ..., busy_with: _Optional[str] = ..., longest_seconds: _Optional[float] = ..., journal: _Optional[_Union[JournalPosition, _Mapping]] = ..., stacks: _Optional[_Union[ProcessStacks, _Mapping]] = ..., steps_done: _Optional[int] = ..., learning_rate: _Optional[float] = ..., pipeline_depth: _Optional[int] = ..., pipeline_why: _Optional[str] = ...) -> None: ...

class StepLoss(_message.Message):
    __slots__ = ("step", "task", "records_done", "version", "loss")
    STEP_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    RECORDS_DONE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    step: int
    task: int
    records_done: int
    version: int
    loss: float
    def __init__(self, step: _Optional[int] = ..., task: _Optional[int] = ..., records_done: _Optional[int] = ..., version: _Optional[int] = ..., loss: _Optional[float] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("stop", "abandon_task", "step_limit_seconds", "journal", "stacks_wanted")
    STOP_FIELD_NUMBER: _ClassVar[int]
    ABANDON_TASK_FIELD_NUMBER: _ClassVar[int]
    STEP_LIMIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    STACKS_WANTED_FIELD_NUMBER: _ClassVar[int]
    stop: bool
    abandon_task: bool
    step_limit_seconds: float
    journal: JournalPosition
    stacks_wanted: int
    def __init__(self, stop: bool = ..., abandon_task: bool = ..., step_limit_seconds: _Optional[float] = ..., journal: _Optional[_Union[JournalPosition, _Mapping]] = ..., stacks_wanted: _Optional[int] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("name", "records", "units", "stamp", "index")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    name: str
    records: int
    units: _containers.RepeatedScalarFieldContainer[int]
    stamp: str
    index: bytes
    def __init__(self, name: _Optional[str] = ..., records: _Optional[int] = ..., units: _Optional[_Iterable[int]] = ..., stamp: _Optional[str] = ..., index: _Optional[bytes] = ...) -> None: ...

class FoundSource(_message.Message):
    __slots__ = ("name", "weight", "stamp")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    name: str
    weight: float
    stamp: str
    def __init__(self, name: _Optional[str] = ..., weight: _Optional[float] = ..., stamp: _Optional[str] = ...) -> None: ...

class EarlyStoppingRule(_message.Message):
    __slots__ = ("monitor", "maximize", "min_delta", "patience", "baseline", "start_from_epoch")
    MONITOR_FIELD_NUMBER: _ClassVar[int]
    MAXIMIZE_FIELD_NUMBER: _ClassVar[int]
    MIN_DELTA_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_FIELD_NUMBER: _ClassVar[int]
    BASELINE_FIELD_NUMBER: _ClassVar[int]
    START_FROM_EPOCH_FIELD_NUMBER: _ClassVar[int]
    monitor: str
    maximize: bool
    min_delta: float
    patience: int
    baseline: float
    start_from_epoch: int
    def __init__(self, monitor: _Optional[str] = ..., maximize: bool = ..., min_delta: _Optional[float] = ..., patience: _Optional[int] = ..., baseline: _Optional[float] = ..., start_from_epoch: _Optional[int] = ...) -> None: ...

class BestRule(_message.Message):
    __slots__ = ("monitor", "maximize", "min_delta")
    MONITOR_FIELD_NUMBER: _ClassVar[int]
    MAXIMIZE_FIELD_NUMBER: _ClassVar[int]
    MIN_DELTA_FIELD_NUMBER: _ClassVar[int]
    monitor: str
    maximize: bool
    min_delta: float
    def __init__(self, monitor: _Optional[str] = ..., maximize: bool = ..., min_delta: _Optional[float] = ...) -> None: ...

class PlateauRule(_message.Message):
    __slots__ = ("best", "patience", "cooldown")
    BEST_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_FIELD_NUMBER: _ClassVar[int]
    COOLDOWN_FIELD_NUMBER: _ClassVar[int]
    best: BestRule
    patience: int
    cooldown: int
    def __init__(self, best: _Optional[_Union[BestRule, _Mapping]] = ..., patience: _Optional[int] = ..., cooldown: _Optional[int] = ...) -> None: ...

class TrainingRules(_message.Message):
    __slots__ = ("max_steps", "early_stopping", "checkpoint", "export", "plateau", "mlflow")
    MAX_STEPS_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    EXPORT_FIELD_NUMBER: _ClassVar[int]
    PLATEAU_FIELD_NUMBER: _ClassVar[int]
    MLFLOW_FIELD_NUMBER: _ClassVar[int]
    max_steps: int
    early_stopping: _containers.RepeatedCompositeFieldContainer[EarlyStoppingRule]
    checkpoint: BestRule
    export: BestRule
    plateau: PlateauRule
    mlflow: MlflowRun
    def __init__(self, max_steps: _Optional[int] = ..., early_stopping: _Optional[_Iterable[_Union[EarlyStoppingRule, _Mapping]]] = ..., checkpoint: _Optional[_Union[BestRule, _Mapping]] = ..., export: _Optional[_Union[BestRule, _Mapping]] = ..., plateau: _Optional[_Union[PlateauRule, _Mapping]] = ..., mlflow: _Optional[_Union[MlflowRun, _Mapping]] = ...) -> None: ...

class MlflowRun(_message.Message):
    __slots__ = ("tracking_uri", "experiment", "run_name", "tags")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TRACKING_URI_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_FIELD_NUMBER: _ClassVar[int]
    RUN_NAME_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    tracking_uri: str
    experiment: str
    run_name: str
    tags: _containers.ScalarMap[str, str]
    def __init__(self, tracking_uri: _Optional[str] = ..., experiment: _Optional[str] = ..., run_name: _Optional[str] = ..., tags: _Optional[_Mapping[str, str]] = ...) -> None: ...

class DataDescription(_message.Message):
    __slots__ = ("training", "validation", "prediction", "notes", "rules", "more_training", "more_validation", "more_prediction", "token")
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    MORE_TRAINING_FIELD_NUMBER: _ClassVar[int]
    MORE_VALIDATION_FIELD_NUMBER: _ClassVar[int]
    MORE_PREDICTION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    training: _containers.RepeatedCompositeFieldContainer[Source]
    validation: _containers.RepeatedCompositeFieldContainer[Source]
    prediction: _containers.RepeatedCompositeFieldContainer[Source]
    notes: _containers.RepeatedScalarFieldContainer[str]
    rules: TrainingRules
    more_training: _containers.RepeatedCompositeFieldContainer[FoundSource]
    more_validation: _containers.RepeatedCompositeFieldContainer[FoundSource]
    more_prediction: _containers.RepeatedCompositeFieldContainer[FoundSource]
    token: str
    def __init__(self, training: _Optional[_Iterable[_Union[Source, _Mapping]]] = ..., validation: _Optional[_Iterable[_Union[Source, _Mapping]]] = ..., prediction: _Optional[_Iterable[_Union[Source, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ..., rules: _Optional[_Union[TrainingRules, _Mapping]] = ..., more_training: _Optional[_Iterable[_Union[FoundSource, _Mapping]]] = ..., more_validation: _Optional[_Iterable[_Union[FoundSource, _Mapping]]] = ..., more_prediction: _Optional[_Iterable[_Union[FoundSource, _Mapping]]] = ..., token: _Optional[str] = ...) -> None: ...

class GetIndexRequest(_message.Message):
    __slots__ = ("worker", "incarnation", "data", "source")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    worker: int
    incarnation: int
    data: str
    source: str
    def __init__(self, worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., data: _Optional[str] = ..., source: _Optional[str] = ...) -> None: ...

class IndexHead(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[IndexEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[IndexEntry, _Mapping]]] = ...) -> None: ...

class IndexEntry(_message.Message):
    __slots__ = ("data", "source", "bytes", "checksum")
    DATA_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    data: str
    source: Source
    bytes: int
    checksum: int
    def __init__(self, data: _Optional[str] = ..., source: _Optional[_Union[Source, _Mapping]] = ..., bytes: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class GetIndexReply(_message.Message):
    __slots__ = ("known", "source")
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    known: bool
    source: Source
    def __init__(self, known: bool = ..., source: _Optional[_Union[Source, _Mapping]] = ...) -> None: ...

class MetricState(_message.Message):
    __slots__ = ("name", "variables", "appended", "rows")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    APPENDED_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    name: str
    variables: _containers.RepeatedCompositeFieldContainer[DoubleArray]
    appended: bool
    rows: KeyedRows
    def __init__(self, name: _Optional[str] = ..., variables: _Optional[_Iterable[_Union[DoubleArray, _Mapping]]] = ..., appended: bool = ..., rows: _Optional[_Union[KeyedRows, _Mapping]] = ...) -> None: ...

class KeyedRows(_message.Message):
    __slots__ = ("keys", "width", "positions", "values")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    width: int
    positions: bytes
    values: bytes
    def __init__(self, keys: _Optional[_Iterable[str]] = ..., width: _Optional[int] = ..., positions: _Optional[bytes] = ..., values: _Optional[bytes] = ...) -> None: ...

class DoubleArray(_message.Message):
    __slots__ = ("shape", "values")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, shape: _Optional[_Iterable[int]] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class MetricStates(_message.Message):
    __slots__ = ("metrics",)
    METRICS_FIELD_NUMBER: _ClassVar[int]
    metrics: _containers.RepeatedCompositeFieldContainer[MetricState]
    def __init__(self, metrics: _Optional[_Iterable[_Union[MetricState, _Mapping]]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("kind", "message", "traceback", "range", "error", "place", "server", "gone")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    kind: FailureKind
    message: str
    traceback: str
    range: Range
    error: str
    place: str
    server: int
    gone: int
    def __init__(self, kind: _Optional[_Union[FailureKind, str]] = ..., message: _Optional[str] = ..., traceback: _Optional[str] = ..., range: _Optional[_Union[Range, _Mapping]] = ..., error: _Optional[str] = ..., place: _Optional[str] = ..., server: _Optional[int] = ..., gone: _Optional[int] = ...) -> None: ...

class ReportTaskRequest(_message.Message):
    __slots__ = ("worker", "incarnation", "task", "done", "failure", "data", "states", "metrics", "version", "records_done", "stop_training", "records_touched", "acknowledged", "journal", "held", "progressive", "progressive_records")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RECORDS_DONE_FIELD_NUMBER: _ClassVar[int]
    STOP_TRAINING_FIELD_NUMBER: _ClassVar[int]
    RECORDS_TOUCHED_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    PROGRESSIVE_FIELD_NUMBER: _ClassVar[int]
    PROGRESSIVE_RECORDS_FIELD_NUMBER: _ClassVar[int]
    worker: int
    incarnation: int
    task: int
    done: bool
    failure: Failure
    data: DataDescription
    states: MetricStates
    metrics: Metrics
    version: int
    records_done: int
    stop_training: str
    records_touched: int
    acknowledged: int
    journal: JournalPosition
    held: int
    progressive: MetricStates
    progressive_records: int
    def __init__(self, worker: _Optional[int] = ..., incarnation: _Optional[int] = ..., task: _Optional[int] = ..., done: bool = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., data: _Optional[_Union[DataDescription, _Mapping]] = ..., states: _Optional[_Union[MetricStates, _Mapping]] = ..., metrics: _Optional[_Union[Metrics, _Mapping]] = ..., version: _Optional[int] = ..., records_done: _Optional[int] = ..., stop_training: _Optional[str] = ..., records_touched: _Optional[int] = ..., acknowledged: _Optional[int] = ..., journal: _Optional[_Union[JournalPosition, _Mapping]] = ..., held: _Optional[int] = ..., progressive: _Optional[_Union[MetricStates, _Mapping]] = ..., progressive_records: _Optional[int] = ...) -> None: ...

class Metrics(_message.Message):
    __slots__ = ("values", "slices")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.ScalarMap[str, float]
    slices: _containers.RepeatedCompositeFieldContainer[SliceMetrics]
    def __init__(self, values: _Optional[_Mapping[str, float]] = ..., slices: _Optional[_Iterable[_Union[SliceMetrics, _Mapping]]] = ...) -> None: ...

class SliceMetrics(_message.Message):
    __slots__ = ("metric", "feature", "value", "records", "auc", "log_loss", "calibration", "label_mean")
    METRIC_FIELD_NUMBER: _ClassVar[int]
    FEATURE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    AUC_FIELD_NUMBER: _ClassVar[int]
    LOG_LOSS_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    LABEL_MEAN_FIELD_NUMBER: _ClassVar[int]
    metric: str
    feature: str
    value: str
    records: int
    auc: float
    log_loss: float
    calibration: float
    label_mean: float
    def __init__(self, metric: _Optional[str] = ..., feature: _Optional[str] = ..., value: _Optional[str] = ..., records: _Optional[int] = ..., auc: _Optional[float] = ..., log_loss: _Optional[float] = ..., calibration: _Optional[float] = ..., label_mean: _Optional[float] = ...) -> None: ...

class ReportTaskReply(_message.Message):
    __slots__ = ("next", "journal")
    NEXT_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    next: GetTaskReply
    journal: JournalPosition
    def __init__(self, next: _Optional[_Union[GetTaskReply, _Mapping]] = ..., journal: _Optional[_Union[JournalPosition, _Mapping]] = ...) -> None: ...

class ReportFailureRequest(_message.Message):
    __slots__ = ("role", "index", "incarnation", "failure", "refused_checkpoint")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    role: str
    index: int
    incarnation: int
    failure: Failure
    refused_checkpoint: int
    def __init__(self, role: _Optional[str] = ..., index: _Optional[int] = ..., incarnation: _Optional[int] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., refused_checkpoint: _Optional[int] = ...) -> None: ...

class ReportFailureReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopJobRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class StopJobReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ScaleJobRequest(_message.Message):
    __slots__ = ("num_workers", "num_servers", "rebalance")
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    NUM_SERVERS_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_FIELD_NUMBER: _ClassVar[int]
    num_workers: int
    num_servers: int
    rebalance: bool
    def __init__(self, num_workers: _Optional[int] = ..., num_servers: _Optional[int] = ..., rebalance: bool = ...) -> None: ...

class ScaleJobReply(_message.Message):
    __slots__ = ("moves",)
    MOVES_FIELD_NUMBER: _ClassVar[int]
    moves: bool
    def __init__(self, moves: bool = ...) -> None: ...

class HoldPublishingRequest(_message.Message):
    __slots__ = ("held",)
    HELD_FIELD_NUMBER: _ClassVar[int]
    held: bool
    def __init__(self, held: bool = ...) -> None: ...

class HoldPublishingReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JobStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EvaluationResult(_message.Message):
    __slots__ = ("version", "epoch", "metrics", "records", "loss")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    version: int
    epoch: int
    metrics: _containers.ScalarMap[str, float]
    records: int
    loss: float
    def __init__(self, version: _Optional[int] = ..., epoch: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., records: _Optional[int] = ..., loss: _Optional[float] = ...) -> None: ...

class Ledger(_message.Message):
    __slots__ = ("total", "trained_once", "repeated", "failed", "pending")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    TRAINED_ONCE_FIELD_NUMBER: _ClassVar[int]
    REPEATED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    total: int
    trained_once: int
    repeated: int
    failed: int
    pending: int
    def __init__(self, total: _Optional[int] = ..., trained_once: _Optional[int] = ..., repeated: _Optional[int] = ..., failed: _Optional[int] = ..., pending: _Optional[int] = ...) -> None: ...

class WorkerView(_message.Message):
    __slots__ = ("worker", "state", "incarnation", "starts", "deaths", "task", "records_done", "waits_for", "stage_seconds", "pipeline_depth", "pipeline_why")
    class StageSecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    DEATHS_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    RECORDS_DONE_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    STAGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_DEPTH_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_WHY_FIELD_NUMBER: _ClassVar[int]
    worker: int
    state: str
    incarnation: int
    starts: int
    deaths: int
    task: Task
    records_done: int
    waits_for: str
    stage_seconds: _containers.ScalarMap[str, float]
    pipeline_depth: int
    pipeline_why: str
    def __init__(self, worker: _Optional[int] = ..., state: _Optional[str] = ..., incarnation: _Optional[int] = ..., starts: _Optional[int] = ..., deaths: _Optional[int] = ..., task: _Optional[_Union[Task, _Mapping]] = ..., records_done: _Optional[int] = ..., waits_for: _Optional[str] = ..., stage_seconds: _Optional[_Mapping[str, float]] = ..., pipeline_depth: _Optional[int] = ..., pipeline_why: _Optional[str] = ...) -> None: ...

class ServerView(_message.Message):
    __slots__ = ("server", "state", "incarnation", "starts", "deaths", "progress", "unprotected", "told", "memory_forecast")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    DEATHS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    UNPROTECTED_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FORECAST_FIELD_NUMBER: _ClassVar[int]
    server: int
    state: str
    incarnation: int
    starts: int
    deaths: int
    progress: str
    unprotected: str
    told: ServerStatus
    memory_forecast: int
    def __init__(self, server: _Optional[int] = ..., state: _Optional[str] = ..., incarnation: _Optional[int] = ..., starts: _Optional[int] = ..., deaths: _Optional[int] = ..., progress: _Optional[str] = ..., unprotected: _Optional[str] = ..., told: _Optional[_Union[ServerStatus, _Mapping]] = ..., memory_forecast: _Optional[int] = ...) -> None: ...

class Diagnosis(_message.Message):
    __slots__ = ("bound_by", "evidence", "advice")
    BOUND_BY_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    bound_by: str
    evidence: str
    advice: str
    def __init__(self, bound_by: _Optional[str] = ..., evidence: _Optional[str] = ..., advice: _Optional[str] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("protocol", "job_name", "state", "epoch", "epochs", "tasks_done", "tasks_total", "ledger", "samples_per_second", "loss", "has_loss", "last_evaluation", "workers_alive", "workers_wanted", "servers_alive", "servers_wanted", "version", "mean_staleness", "seconds", "messages", "failure", "records_done", "records_total", "stage_seconds", "bad_records", "left_out", "trouble", "waits_for", "waits_progress", "workers", "servers", "checkpoint_seconds", "diagnosis", "delta", "published_seconds")
    class StageSecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    TASKS_DONE_FIELD_NUMBER: _ClassVar[int]
    TASKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    HAS_LOSS_FIELD_NUMBER: _ClassVar[int]
    LAST_EVALUATION_FIELD_NUMBER: _ClassVar[int]
    WORKERS_ALIVE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_WANTED_FIELD_NUMBER: _ClassVar[int]
    SERVERS_ALIVE_FIELD_NUMBER: _ClassVar[int]
    SERVERS_WANTED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MEAN_STALENESS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_DONE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    STAGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BAD_RECORDS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    WAITS_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DIAGNOSIS_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    protocol: Protocol
    job_name: str
    state: str
    epoch: int
    epochs: int
    tasks_done: int
    tasks_total: int
    ledger: Ledger
    samples_per_second: float
    loss: float
    has_loss: bool
    last_evaluation: EvaluationResult
    workers_alive: int
    workers_wanted: int
    servers_alive: int
    servers_wanted: int
    version: int
    mean_staleness: float
    seconds: float
    messages: _containers.RepeatedScalarFieldContainer[str]
    failure: Failure
    records_done: int
    records_total: int
    stage_seconds: _containers.ScalarMap[str, float]
    bad_records: int
    left_out: int
    trouble: str
    waits_for: str
    waits_progress: str
    workers: _containers.RepeatedCompositeFieldContainer[WorkerView]
    servers: _containers.RepeatedCompositeFieldContainer[ServerView]
    checkpoint_seconds: float
    diagnosis: Diagnosis
    delta: int
    published_seconds: float
    def __init__(self, protocol: _Optional[_Union[Protocol, _Mapping]] = ..., job_name: _Optional[str] = ..., state: _Optional[str] = ..., epoch: _Optional[int] = ..., epochs: _Optional[int] = ..., tasks_done: _Optional[int] = ..., tasks_total: _Optional[int] = ..., ledger: _Optional[_Union[Ledger, _Mapping]] = ..., samples_per_second: _Optional[float] = ..., loss: _Optional[float] = ..., has_loss: bool = ..., last_evaluation: _Optional[_Union[EvaluationResult, _Mapping]] = ..., workers_alive: _Optional[int] = ..., workers_wanted: _Optional[int] = ..., servers_alive: _Optional[int] = ..., servers_wanted: _Optional[int] = ..., version: _Optional[int] = ..., mean_staleness: _Optional[float] = ..., seconds: _Optional[float] = ..., messages: _Optional[_Iterable[str]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., records_done: _Optional[int] = ..., records_total: _Optional[int] = ..., stage_seconds: _Optional[_Mapping[str, float]] = ..., bad_records: _Optional[int] = ..., left_out: _Optional[int] = ..., trouble: _Optional[str] = ..., waits_for: _Optional[str] = ..., waits_progress: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[WorkerView, _Mapping]]] = ..., servers: _Optional[_Iterable[_Union[ServerView, _Mapping]]] = ..., checkpoint_seconds: _Optional[float] = ..., diagnosis: _Optional[_Union[Diagnosis, _Mapping]] = ..., delta: _Optional[int] = ..., published_seconds: _Optional[float] = ...) -> None: ...

class AuditJobRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AuditJobReply(_message.Message):
    __slots__ = ("audit",)
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    audit: str
    def __init__(self, audit: _Optional[str] = ...) -> None: ...

class JobMetricsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JobMetrics(_message.Message):
    __slots__ = ("csv",)
    CSV_FIELD_NUMBER: _ClassVar[int]
    csv: str
    def __init__(self, csv: _Optional[str] = ...) -> None: ...

class JobLogRequest(_message.Message):
    __slots__ = ("role", "index", "incarnation")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    role: str
    index: int
    incarnation: int
    def __init__(self, role: _Optional[str] = ..., index: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class JobLog(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class JobStacksRequest(_message.Message):
    __slots__ = ("role", "index")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    role: str
    index: int
    def __init__(self, role: _Optional[str] = ..., index: _Optional[int] = ...) -> None: ...

class JobStacks(_message.Message):
    __slots__ = ("processes",)
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    processes: _containers.RepeatedCompositeFieldContainer[ProcessStacks]
    def __init__(self, processes: _Optional[_Iterable[_Union[ProcessStacks, _Mapping]]] = ...) -> None: ...
