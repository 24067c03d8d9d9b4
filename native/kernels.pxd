"""The C headers as Cython sees them: each struct and function is declared here, once.

Numbers that C and Python must agree on travel by name: the headers list rules, constants,
formats and kinds of initializer with their names, and `number_of` finds a name's number.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "finite.h" nogil:
    int64_t shoal_first_not_finite(const float *, int64_t)

cdef extern from "halves.h" nogil:
    void shoal_encode_bfloat16(const float *, uint16_t *, int64_t)
    void shoal_decode_bfloat16(const uint16_t *, float *, int64_t)
    void shoal_encode_float16(const float *, uint16_t *, int64_t)
    void shoal_decode_float16(const uint16_t *, float *, int64_t)

cdef extern from "scaled.h" nogil:
    float shoal_scale_of(const float *, int64_t)
    void shoal_encode_scaled(const float *, float scale, uint16_t *, int64_t)

cdef extern from "mixing.h" nogil:
    enum: SHOAL_SLOT_BITS
    uint64_t shoal_mix64(uint64_t)

cdef extern from "batch.h" nogil:
    void shoal_mix_all(const int64_t *, uint64_t *, int64_t)
    void shoal_slot_all(const int64_t *, uint16_t *, int64_t)
    void shoal_unique_places(const int64_t *, uint64_t *, int64_t, uint64_t, uint64_t)
    int64_t shoal_unique(const int64_t *, int64_t, uint32_t *, uint64_t, uint64_t,
                         int64_t *, int32_t *, int32_t *)
    int shoal_partition(const int64_t *, int64_t, const uint16_t *, int64_t, uint16_t *,
                        int64_t *, int64_t *)
    void shoal_sum_rows(const float *, const int32_t *, int64_t, int64_t, float *)
    void shoal_gather(const float *, const int32_t *, int64_t, int64_t, float *)
    void shoal_scatter(const float *, const int32_t *, int64_t, int64_t, float *)
    int shoal_all_below(const int32_t *, int64_t, int64_t)
    double shoal_square_sum(const float *, int64_t)

cdef extern from "steps.h" nogil:
    enum: SHOAL_RULES, SHOAL_CONSTANTS, SHOAL_ADAGRAD, SHOAL_ROWWISE_ADAGRAD
    const char *const *shoal_rule_names
    const char *const *shoal_constant_names
    ctypedef struct shoal_step:
        int rule
        float decay
    shoal_step shoal_step_of(int rule, const double *constants)
    shoal_step shoal_step_at(const shoal_step *, double rate, double scale, double step)

cdef extern from "apply.h" nogil:
    enum: SHOAL_FORMATS
    const char *const *shoal_format_names

cdef extern from "initial.h" nogil:
    enum: SHOAL_KINDS
    const char *const *shoal_kind_names
    ctypedef struct shoal_initial:
        int kind
        float a
        float b
        uint64_t key

cdef extern from "crew.h" nogil:
    enum: SHOAL_HELPERS
    ctypedef struct shoal_crew:
        int cores
        int machine
    void shoal_crew_init(shoal_crew *)
    int pthread_atfork(void (*)() noexcept, void (*)() noexcept, void (*)() noexcept)

cdef extern from "compaction.h" nogil:
    enum: SHOAL_MAX_SLOTS, SHOAL_SEGMENT_ROWS, SHOAL_ROW_BITS, SHOAL_MANY_USES
    enum: SHOAL_MAX_ADMIT_AFTER, SHOAL_USE_CLASSES, SHOAL_ERA_BITS
    ctypedef struct shoal_store:
        pass
    ctypedef struct shoal_batch:
        int64_t n
        const int64_t *ids
        float *out
        const float *gradients
        int use_default
        int64_t *reads
        const shoal_step *step
        int64_t number
        const float *values
        const float *slots[SHOAL_MAX_SLOTS]
        const int64_t *steps
        const uint32_t *uses
    ctypedef struct shoal_rows:
        int64_t *ids
        float *values
        float *slots[SHOAL_MAX_SLOTS]
        int64_t *steps
        uint32_t *uses
        int64_t filled
        int64_t room
    ctypedef struct shoal_split:
        shoal_rows **parts
        const uint16_t *part_of
        int counting
        int chosen
        int64_t since
    ctypedef struct shoal_choice:
        const int64_t *sure
        const int64_t *maybe
        uint64_t below
    ctypedef struct shoal_cuts:
        shoal_choice rows
        shoal_choice counting
        int64_t from_ "from"
    shoal_store *shoal_store_create(int64_t dim, int format, int slots, int64_t slot_width,
                                    const float *slot_initial, shoal_initial initial,
                                    float default_value, uint32_t admit_after,
                                    uint64_t noise_key, uint64_t place_key, shoal_crew *crew)
    void shoal_store_destroy(shoal_store *)
    size_t shoal_store_memory(shoal_store *)
    int64_t shoal_store_count(shoal_store *)
    int64_t shoal_store_counting(shoal_store *)
    int64_t shoal_store_free(shoal_store *)
    int shoal_run(shoal_store *, const shoal_batch *)
    void shoal_advance(shoal_store *, int64_t)
    int shoal_reserve(shoal_store *, int64_t)
    int shoal_instruction_set()
    int64_t shoal_remove(shoal_store *, const int64_t *, int64_t, const shoal_cuts *, int64_t *,
                         int64_t *)
    int64_t shoal_collect(shoal_store *, uint64_t *, const shoal_cuts *, int64_t *, int64_t,
                          uint64_t until)
    ctypedef struct shoal_bounds:
        const int64_t *bounds
        int64_t count
        const uint16_t *reached
        int64_t cells
        int shift

    enum: SHOAL_ORDER_CLASSES, SHOAL_AGE_CLASSES
    ctypedef struct shoal_census "struct shoal_census":
        int64_t end
        int by_worth
        int64_t *seen
        int64_t *left
        int64_t *missed
        uint64_t cursor
    void shoal_census_look(shoal_store *, shoal_census *, uint64_t until)
    void shoal_census_set(shoal_store *, shoal_census *)
    int shoal_count_segment(shoal_store *, uint64_t *, const shoal_bounds *, int64_t *, int64_t *)
    int shoal_contains(shoal_store *, int64_t)
    enum: SHOAL_NO_PART
    int shoal_export_one(shoal_store *, int64_t, const shoal_split *)
    int shoal_export_segment(shoal_store *, uint64_t *, const shoal_split *)
    int shoal_counting_segment(shoal_store *, uint64_t *, int, const shoal_split *)
    int shoal_assign_counting(shoal_store *, const int64_t *, const int64_t *, const uint32_t *,
                              int64_t)
    int shoal_compact(shoal_store *)
    int shoal_snapshot_begin(shoal_store *)
    void shoal_snapshot_end(shoal_store *)
    int shoal_snapshot_segment(shoal_store *, uint64_t *, const shoal_split *)
    int shoal_snapshot_kept(shoal_store *, const shoal_split *)
    int shoal_snapshot_failed(const shoal_store *)

cdef extern from "pushes.h" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *, const void *)
    int pthread_mutex_destroy(pthread_mutex_t *)
    int pthread_mutex_lock(pthread_mutex_t *)
    int pthread_mutex_trylock(pthread_mutex_t *)
    int pthread_mutex_unlock(pthread_mutex_t *)
    ctypedef struct shoal_push_record:
        pthread_mutex_t lock
        int64_t incarnation
        int64_t fenced
        uint64_t sequence
        uint64_t pending
        int64_t task
        int64_t records_done

cdef extern from "moments.h" nogil:
    enum: SHOAL_WORKERS, SHOAL_DOUBLINGS
    ctypedef struct shoal_dense:
        pthread_mutex_t lock
        shoal_step step
        float *values
        float *scratch
        int64_t n
    ctypedef struct shoal_distribution:
        double unit
        int64_t buckets[SHOAL_DOUBLINGS]
        int64_t count
        double sum
        double maximum
    ctypedef struct shoal_sender:
        int64_t incarnation
        uint64_t sequence
    ctypedef struct shoal_stale:
        int64_t staleness
        double age
    ctypedef struct shoal_moments:
        pthread_mutex_t lock
        shoal_store *const *stores
        int store_count
        int64_t step
        int64_t version
        int64_t dense_version
        shoal_sender *senders
        size_t known
        shoal_dense *dense
        int64_t dense_epoch
        float *state
        int64_t state_elements
        shoal_distribution staleness
        shoal_distribution age
    void shoal_dense_update(shoal_dense *, const float *gradient, double rate, double scale,
                            int64_t step)
    void shoal_begin_step(shoal_moments *, int64_t step)
    int shoal_expect_sender(shoal_moments *, uint64_t worker)
    void shoal_note_sender(shoal_moments *, uint64_t worker, int64_t incarnation, uint64_t sequence)
    uint64_t shoal_last_applied(const shoal_moments *, uint64_t worker, int64_t incarnation)
    int shoal_wants_dense(const shoal_moments *, int64_t has)
    int shoal_take_ticket(shoal_moments *, uint64_t worker, int64_t pulled_version, int64_t *step,
                          int64_t *staleness)
    void shoal_count_version(shoal_moments *, const float *change, float divisor,
                             const shoal_stale *, int count)

cdef extern from "tls.h" nogil:
    enum: SHOAL_TLS_DONE, SHOAL_TLS_LATE, SHOAL_TLS_ENDED
    enum: SHOAL_OPENSSL_MAJOR, SHOAL_SSL_MODE, SHOAL_SSL_MODES, SHOAL_SSL_READ_AHEAD
    enum: SHOAL_SSL_SESSIONS, SHOAL_SSL_HOST_NAME, SHOAL_SSL_LEAST_VERSION, SHOAL_SSL_TLS13
    enum: SHOAL_SSL_VERIFY, SHOAL_SSL_LEVEL, SHOAL_SSL_OLD_EOF, SHOAL_X509_WHOLE_LABELS
    enum: SHOAL_X509_OTHER_NAMES, SHOAL_X509_URI
    struct iovec:
        void *iov_base
        size_t iov_len
    ctypedef struct shoal_openssl:
        unsigned long (*OpenSSL_version_num)()
        void (*ERR_clear_error)()
        unsigned long (*ERR_peek_last_error)()
        const char *(*ERR_reason_error_string)(unsigned long)
        void *(*BIO_new_mem_buf)(const void *, int)
        int (*BIO_free)(void *)
        void *(*PEM_read_bio_X509)(void *, void **, void *, void *)
        void *(*PEM_read_bio_PrivateKey)(void *, void **, void *, void *)
        void (*X509_free)(void *)
        void (*EVP_PKEY_free)(void *)
        int (*X509_STORE_add_cert)(void *, void *)
        void *(*X509_get_ext_d2i)(const void *, int, int *, int *)
        int (*OPENSSL_sk_num)(const void *)
        void *(*OPENSSL_sk_value)(const void *, int)
        void *(*GENERAL_NAME_get0_value)(const void *, int *)
        void (*GENERAL_NAMES_free)(void *)
        const unsigned char *(*ASN1_STRING_get0_data)(const void *)
        int (*ASN1_STRING_length)(const void *)
        const void *(*TLS_client_method)()
        const void *(*TLS_server_method)()
        void *(*SSL_CTX_new)(const void *)
        void (*SSL_CTX_free)(void *)
        long (*SSL_CTX_ctrl)(void *, int, long, void *)
        uint64_t (*SSL_CTX_set_options)(void *, uint64_t)
        void (*SSL_CTX_set_security_level)(void *, int)
        int (*SSL_CTX_set_num_tickets)(void *, size_t)
        void (*SSL_CTX_set_default_read_buffer_len)(void *, size_t)
        void (*SSL_CTX_set_verify)(void *, int, void *)
        void *(*SSL_CTX_get_cert_store)(const void *)
        int (*SSL_CTX_use_certificate)(void *, void *)
        int (*SSL_CTX_use_PrivateKey)(void *, void *)
        void *(*SSL_new)(void *)
        void (*SSL_free)(void *)
        int (*SSL_set_fd)(void *, int)
        long (*SSL_ctrl)(void *, int, long, void *)
        int (*SSL_set1_host)(void *, const char *)
        void (*SSL_set_hostflags)(void *, unsigned)
        void (*SSL_set_accept_state)(void *)
        void (*SSL_set_connect_state)(void *)
        void *(*SSL_get1_peer_certificate)(const void *)
    ctypedef struct shoal_tls:
        const shoal_openssl *lib
        void *ssl
        int socket
        int used
        int failed
        double seconds
        int (*signalled)() noexcept nogil
        int64_t speaker
        int error
        char *why
    const char *shoal_find_openssl(const char *module, shoal_openssl *)
    void shoal_tls_fail(shoal_tls *, int error)
    int shoal_tls_handshake(shoal_tls *, double until)
    int shoal_tls_receive(shoal_tls *, char *to, size_t size, int whole, double until, size_t *got)
    int shoal_tls_send_parts(shoal_tls *, const iovec *, int count, double seconds)

cdef extern from "clock.h" nogil:
    double shoal_now()
cdef extern from "between.h" nogil:
    enum: SHOAL_ENTERED, SHOAL_NOT_PLAIN, SHOAL_NO_TICKET
    const int64_t SHOAL_NO_TIME
    ctypedef struct pthread_cond_t:
        pass
    int pthread_cond_init(pthread_cond_t *, const void *)
    int pthread_cond_destroy(pthread_cond_t *)
    int64_t shoal_number(const int64_t *)
    void shoal_set_number(int64_t *, int64_t)
    ctypedef struct shoal_cap:
        shoal_store *store
        int64_t rows
        int64_t counting
    ctypedef struct shoal_clock:
        int64_t now
        int64_t until
        int64_t leap
        int64_t behind
    ctypedef struct shoal_between:
        pthread_mutex_t lock
        pthread_cond_t opened
        shoal_moments *moments
        int64_t due_from
        int suspended
        int closed
        shoal_cap *caps
        int cap_count
        shoal_clock clock
    void shoal_await_open(shoal_between *)
    void shoal_go(shoal_between *, int64_t step)
    int shoal_enter(shoal_between *, uint64_t worker, int64_t pulled_version, int timed,
                    int64_t time, int64_t *step, int64_t *staleness)
    int shoal_leave(shoal_between *, int applied)
    void shoal_open(shoal_between *)

cdef extern from "whole.h" nogil:
    ctypedef struct shoal_whole:
        int writing
    int shoal_whole_init(shoal_whole *, double seconds)
    void shoal_whole_end(shoal_whole *)
    void shoal_enter_reading(shoal_whole *, int64_t after)
    void shoal_leave_reading(shoal_whole *)
    void shoal_enter_writing(shoal_whole *)
    void shoal_leave_writing(shoal_whole *)
    void shoal_note_update(shoal_whole *, int64_t update)
    int64_t shoal_last_update(shoal_whole *)

cdef extern from "connection.h" nogil:
    enum: SHOAL_ANYBODY, SHOAL_NOBODY
    enum: SHOAL_BUCKETS, SHOAL_SLOT_BYTES, SHOAL_FLAGS, SHOAL_PUSH_ANSWER, SHOAL_MESSAGE_PREFIX
    enum: SHOAL_FOR_PYTHON, SHOAL_IDLE, SHOAL_LATE, SHOAL_CLOSED, SHOAL_BROKEN, SHOAL_HALF_APPLIED
    enum: SHOAL_PUSH_APPLIED, SHOAL_PUSH_BROKEN
    ctypedef struct shoal_served:
        shoal_store *store
        const shoal_step *step
        int vocabulary
        int frozen
        int64_t bound
        int64_t *reads
    ctypedef struct shoal_durations:
        int64_t buckets[SHOAL_BUCKETS + 1]
        double seconds
    ctypedef struct shoal_log:
        int (*append)(void *context, const uint8_t *frame, size_t size, uint64_t worker,
                      int64_t pulled_version, const int64_t *time, int64_t *step,
                      int64_t *staleness, void **waiting) noexcept nogil
        int (*kept)(void *context, void *waiting) noexcept nogil
    ctypedef struct shoal_answerer:
        pthread_mutex_t lock
        int open
        int again
        int64_t *met
        size_t known
        int64_t epoch
        int alone
        uint8_t own[SHOAL_SLOT_BYTES]
        const shoal_served *tables
        int table_count
        shoal_moments *moments
        shoal_log log
        shoal_between *between
        shoal_whole *whole
        int (*sweep)(void *context) noexcept nogil
        void *context
        int closed
        int finite_only
        double python_from
        uint32_t *loads
        shoal_push_record **records
        size_t recorded
        const char *const *watched
        int watched_count
        const double *bounds
        int bound_count
        shoal_durations pulled
        shoal_durations pushed
    ctypedef struct shoal_message:
        char *start
        size_t size
    ctypedef struct shoal_connection:
        int socket
        uint8_t *buffer
        size_t size
        size_t begin
        size_t start
        size_t end
        int pull
        int push
        uint8_t *flags
        double part_seconds
        const char *pause
        shoal_tls *tls
        int error
        shoal_push_record *broken
    int shoal_note_met(shoal_answerer *, uint64_t worker, int64_t incarnation)
    int shoal_know_record(shoal_answerer *, uint64_t worker, shoal_push_record *)
    int shoal_counts_load(shoal_answerer *)
    void shoal_note_load(shoal_answerer *, const int64_t *, uint64_t)
    void shoal_take_pushes(shoal_answerer *, int)
    void shoal_set_epoch(shoal_answerer *, int64_t epoch)
    void shoal_leave_from(shoal_answerer *, double moment)
    int shoal_serve(shoal_answerer *, shoal_connection *)
    int shoal_apply_frame(shoal_answerer *, int64_t speaker, const uint8_t *frame, size_t size,
                          shoal_message *, shoal_push_record **broken)

cdef extern from "wire.h" nogil:
    enum: SHOAL_WIRE_INT64, SHOAL_WIRE_FLOAT32, SHOAL_WIRE_BFLOAT16, SHOAL_WIRE_FLOAT16

cdef extern from "fan_out.h" nogil:
    enum: SHOAL_FAN_NUMBERS, SHOAL_FAN_PIECES
    enum: SHOAL_FAN_SENDING, SHOAL_FAN_DONE, SHOAL_FAN_UNSENT, SHOAL_FAN_UNREAD
    enum: SHOAL_FAN_UNTAKEN, SHOAL_FAN_LATE, SHOAL_FAN_CLOSED, SHOAL_FAN_BROKEN
    enum: SHOAL_FAN_SHARED, SHOAL_FAN_INTEGERS, SHOAL_FAN_REALS, SHOAL_FAN_SCALES, SHOAL_FAN_SPECS
    ctypedef struct shoal_fan_array:
        char *data
        const int64_t *offsets
        int64_t columns
        int type
        int width
        float *decoded
    ctypedef struct shoal_fan_arrays:
        shoal_fan_array *arrays
        int count
        int optional
    ctypedef struct shoal_fan_piece:
        int kind
        unsigned field
        size_t size
        const void *each
    ctypedef struct shoal_fan_way:
        int socket
        int error
        shoal_tls *tls
        uint8_t *kept
        size_t kept_size
    ctypedef struct shoal_fan:
        int servers
        int kind
        int answer
        int pieces
        int flag
        int specs
        int fields
        unsigned reals
        unsigned flags
        size_t most_bytes
        double seconds
        shoal_fan_piece *piece
        shoal_fan_arrays sent
        shoal_fan_arrays wanted
        const int64_t *has
        shoal_fan_way *ways
        uint8_t *status
        int64_t *numbers
        uint8_t *arena
    int shoal_fan_new(shoal_fan *, int servers)
    shoal_fan_array *shoal_fan_add_array(shoal_fan_arrays *)
    int shoal_fan_share(shoal_fan *, const uint8_t *packed, size_t size)
    int shoal_fan_begin(shoal_fan *)
    int shoal_fan_run(shoal_fan *)
    void shoal_fan_free(shoal_fan *)


cdef inline void take(pthread_mutex_t *lock) noexcept:
    """Lock what Python's threads and those without Python's lock share.

    Nobody who holds it waits for Python's lock, unless it is a PushRecord's. To let go of Python's
    lock for so little, and to get it back among many threads, would cost more than the whole.
    """
    if pthread_mutex_trylock(lock) != 0:
        with nogil:
            pthread_mutex_lock(lock)


cdef inline int number_of(str name, const char *const *names, int count) except -1:
    """The place of a name in a header's list; ValueError if it is not there."""
    for k in range(count):
        if names[k].decode() == name:
            return k
    raise ValueError(f"the kernels know no {name!r}")


cdef inline shoal_step step_of(object optimizer) except *:
    """An OptimizerSpec as the kernels read it.

    Raises ValueError unless its rule and its constants are the ones that steps.h lists.
    """
    cdef double constants[SHOAL_CONSTANTS]
    cdef dict given = optimizer.constants
    if len(given) != SHOAL_CONSTANTS:
        raise ValueError(f"the kernels read {SHOAL_CONSTANTS} constants, given {sorted(given)}")
    for name, value in given.items():
        constants[number_of(name, shoal_constant_names, SHOAL_CONSTANTS)] = value
    return shoal_step_of(number_of(optimizer.rule, shoal_rule_names, SHOAL_RULES), constants)
