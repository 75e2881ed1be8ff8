/* What the sources of the module fedsofim_kernel share. */

#ifndef FEDSOFIM_KERNEL_H
#define FEDSOFIM_KERNEL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#ifdef EVERY_CPU /* one was chosen: scripts/as_avx2 */
#elif defined(__x86_64__) && defined(__GLIBC__) && __GNUC__ >= 12 && !defined(__clang__)
#define EVERY_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define SEVERAL_CPUS
#else
#define EVERY_CPU
#endif

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#define VECTORS /* GCC and clang have them */
#define HAS_VECTORS 1
#else
#define HAS_VECTORS 0
#define INLINE static inline
#endif

#ifdef _MSC_VER
#define restrict __restrict
#endif

/* Keep a vector in a register: GCC would load it again for every product, and loads are scarcer. */
#if defined(VECTORS) && defined(__x86_64__)
#define KEEP(vector) __asm__("" : "+v"(vector))
#else
#define KEEP(vector) (void)(vector)
#endif

#if defined(VECTORS) && defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLE __builtin_shufflevector
#endif
#endif

#define FLOAT ((Py_ssize_t)sizeof(float))

/* A client's sum is that of so many examples after another, which stay in the L2 cache; so few are taken at
   once. */
#define CHUNK 4096
#define SMALL 32

/* kernel.c */
void labels_of(int32_t *label, const float *target, Py_ssize_t stride, Py_ssize_t K, Py_ssize_t N);
int get_floats(PyObject *array, Py_buffer *view, int ndim, int flags);

/* The work of one client: rows of x are so many floats apart. Residuals r are clipped by the norm of
   R r, where R is an upper triangle; NULL is the identity. What is wanted is the sum of r x', or, as
   their moment, of r r'. */
typedef struct {
    const float *theta, *x, *norm, *clip, *R;
    const int32_t *label;
    Py_ssize_t x_stride, S, K, W, N;
    int moment;
} Work;

/* client.c: write the sum, (S, K, W), or the moment, (S, K, K), to `total`, with `client_room` floats of
   memory. */
Py_ssize_t client_room(const Work *w);
void client_sum(float *total, float *memory, const Work *w);

/* client.c: logits z, (S, K, N), become the residuals of clipped gradients, in place; whether some was too
   large, and so is 0, is returned. R is (S, K, K); with `residuals_room` floats of memory. */
Py_ssize_t residuals_room(Py_ssize_t K);
int clipped_residuals(float *z, float *memory, const int32_t *label, const float *norm,
                      const float *clip, const float *R, Py_ssize_t S, Py_ssize_t K, Py_ssize_t N);

/* client.c: each of the totals, (n, S, K, W), becomes G total A, where G is (S, K, K), or NULL for the
   identity, and A is (W, W), with its `last_columns`; with `factors_room` floats of memory. */
Py_ssize_t factors_room(Py_ssize_t K, Py_ssize_t W);
void apply_factors(float *totals, float *memory, Py_ssize_t n, Py_ssize_t S, Py_ssize_t K, Py_ssize_t W,
                   const float *G, const float *A, const float *last);

/* client.c: the columns of A that are less than a tile, filled up with zeros, for PyMem_RawFree; NULL if
   there is no memory. */
float *last_columns(const float *A, Py_ssize_t W);

/* team.c: do each of `count` pieces of work, with `room` floats of memory that are the thread's own; 0 if
   there is no memory. It is called without Python's lock. */
typedef struct {
    void (*work)(const void *what, Py_ssize_t i, float *memory);
    const void *what;
    Py_ssize_t count, room;
} Task;
int share_out(const Task *task, Py_ssize_t threads);

/* crowd.c, held.c, moments.c and streams.c */
PyObject *clipped_sums(PyObject *self, PyObject *args);
PyObject *transform_sums(PyObject *self, PyObject *args);
PyObject *decode_rows(PyObject *self, PyObject *args);
PyObject *decoded_sum(PyObject *self, PyObject *args);
PyObject *clipped_moment(PyObject *self, PyObject *args); /* only with VECTORS */
PyObject *norms_through(PyObject *self, PyObject *args);  /* only with VECTORS */
PyObject *weighted_sum(PyObject *self, PyObject *args);   /* only with VECTORS */
extern PyTypeObject StreamType;

#endif
