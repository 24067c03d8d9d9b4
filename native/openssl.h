/* The functions of the OpenSSL that Python's ssl has loaded, found at run time.
 *
 * So no headers of OpenSSL are needed to build this, and no second OpenSSL is in the process, whose
 * state would be another one. Its types are opaque here, and its constants are those of version 3.
 */
#ifndef SHOAL_OPENSSL_H
#define SHOAL_OPENSSL_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* of its function: what it returns, its name, what it takes */
#define SHOAL_EACH_OPENSSL(X)                                                                      \
    X(unsigned long, OpenSSL_version_num, (void))                                                  \
    X(void, ERR_clear_error, (void))                                                               \
    X(unsigned long, ERR_peek_last_error, (void))                                                  \
    X(const char *, ERR_reason_error_string, (unsigned long code))                                 \
    X(void *, BIO_new_mem_buf, (const void *from, int size))                                       \
    X(int, BIO_free, (void *bio))                                                                  \
    X(void *, PEM_read_bio_X509, (void *bio, void **x, void *callback, void *password))            \
    X(void *, PEM_read_bio_PrivateKey, (void *bio, void **x, void *callback, void *password))      \
    X(void, X509_free, (void *certificate))                                                        \
    X(void, EVP_PKEY_free, (void *key))                                                            \
    X(int, X509_STORE_add_cert, (void *store, void *certificate))                                  \
    X(const char *, X509_verify_cert_error_string, (long code))                                    \
    X(void *, X509_get_ext_d2i, (const void *certificate, int nid, int *critical, int *place))     \
    X(int, OPENSSL_sk_num, (const void *stack))                                                    \
    X(void *, OPENSSL_sk_value, (const void *stack, int place))                                    \
    X(void *, GENERAL_NAME_get0_value, (const void *name, int *type))                              \
    X(void, GENERAL_NAMES_free, (void *names))                                                     \
    X(const unsigned char *, ASN1_STRING_get0_data, (const void *string))                          \
    X(int, ASN1_STRING_length, (const void *string))                                               \
    X(const void *, TLS_client_method, (void))                                                     \
    X(const void *, TLS_server_method, (void))                                                     \
    X(void *, SSL_CTX_new, (const void *method))                                                   \
    X(void, SSL_CTX_free, (void *context))                                                         \
    X(long, SSL_CTX_ctrl, (void *context, int what, long number, void *pointer))                   \
    X(uint64_t, SSL_CTX_set_options, (void *context, uint64_t options))                            \
    X(void, SSL_CTX_set_security_level, (void *context, int level))                                \
    X(int, SSL_CTX_set_num_tickets, (void *context, size_t count))                                 \
    X(void, SSL_CTX_set_default_read_buffer_len, (void *context, size_t size))                     \
    X(void, SSL_CTX_set_verify, (void *context, int mode, void *callback))                         \
    X(void *, SSL_CTX_get_cert_store, (const void *context))                                       \
    X(int, SSL_CTX_use_certificate, (void *context, void *certificate))                            \
    X(int, SSL_CTX_use_PrivateKey, (void *context, void *key))                                     \
    X(void *, SSL_new, (void *context))                                                            \
    X(void, SSL_free, (void *ssl))                                                                 \
    X(int, SSL_set_fd, (void *ssl, int socket))                                                    \
    X(long, SSL_ctrl, (void *ssl, int what, long number, void *pointer))                           \
    X(int, SSL_set1_host, (void *ssl, const char *host))                                           \
    X(void, SSL_set_hostflags, (void *ssl, unsigned flags))                                        \
    X(void, SSL_set_accept_state, (void *ssl))                                                     \
    X(void, SSL_set_connect_state, (void *ssl))                                                    \
    X(int, SSL_do_handshake, (void *ssl))                                                          \
    X(long, SSL_get_verify_result, (const void *ssl))                                              \
    X(void *, SSL_get1_peer_certificate, (const void *ssl))                                        \
    X(int, SSL_read_ex, (void *ssl, void *to, size_t size, size_t *got))                           \
    X(int, SSL_write_ex, (void *ssl, const void *from, size_t size, size_t *sent))                 \
    X(int, SSL_has_pending, (const void *ssl))                                                     \
    X(int, SSL_get_error, (const void *ssl, int result))

typedef struct {
#define SHOAL_FIELD(result, name, arguments) result(*name) arguments;
    SHOAL_EACH_OPENSSL(SHOAL_FIELD)
#undef SHOAL_FIELD
} shoal_openssl;

enum {
    SHOAL_OPENSSL_MAJOR = 3,
    /* SSL_CTX_ctrl and SSL_ctrl */
    SHOAL_SSL_MODE = 33,
    SHOAL_SSL_READ_AHEAD = 41,
    SHOAL_SSL_SESSIONS = 44,
    SHOAL_SSL_HOST_NAME = 55,
    SHOAL_SSL_LEAST_VERSION = 123,
    /* modes: partial writes, buffers that move, retries, buffers released */
    SHOAL_SSL_MODES = 0x1 | 0x2 | 0x4 | 0x10,
    SHOAL_SSL_TLS13 = 0x0304,
    SHOAL_SSL_VERIFY = 0x01 | 0x02, /* the other end, and it must have a certificate */
    SHOAL_SSL_LEVEL = 2,            /* of security, as Python's contexts have it */
    SHOAL_SSL_OLD_EOF = 1 << 7,     /* an end without close_notify is an end */
    SHOAL_X509_WHOLE_LABELS = 0x4,  /* "*" is a whole label of a host name; as in Python */
    SHOAL_X509_OTHER_HOST = 62,
    SHOAL_X509_OTHER_NAMES = 85, /* subjectAltName */
    SHOAL_X509_URI = 6,
    /* SSL_get_error */
    SHOAL_SSL_FAILED = 1,
    SHOAL_SSL_READS = 2,
    SHOAL_SSL_WRITES = 3,
    SHOAL_SSL_SYSTEM = 5,
    SHOAL_SSL_ENDED = 6,
    SHOAL_SSL_REASON = 0x7FFFFF, /* of a code */
    SHOAL_SSL_NOT_VERIFIED = 134
};

/* Fills in the functions that `module`, a library which is loaded, finds itself. Returns NULL, or the
 * name of what is missing. */
static const char *shoal_find_openssl(const char *module, shoal_openssl *found) {
    void *const handle = dlopen(module, RTLD_NOW | RTLD_NOLOAD); /* never closed: it stays loaded */
    void *each;
    if (!handle) return module;
#define SHOAL_FIND(result, name, arguments)                                                        \
    if (!(each = dlsym(handle, #name))) return #name;                                              \
    memcpy(&found->name, &each, sizeof each);
    SHOAL_EACH_OPENSSL(SHOAL_FIND)
#undef SHOAL_FIND
    return NULL;
}

#endif
