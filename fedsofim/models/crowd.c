/* The clipped gradient sums of many clients in one call, each by client.c: what they are is the same in
   every company. */

#include "kernel.h"

#include <stdlib.h>

/* The arrays of one client; 0 and an exception if they do not fit. */
static int get_client(Work *w, Py_buffer *b, PyObject **lists, Py_ssize_t i, Py_ssize_t K,
                      Py_ssize_t W)
{
    const int ndim[3] = {2, 2, 1};
    int held = 0;
    while (held < 3 &&
           get_floats(PyList_GET_ITEM(lists[held], i), b + held, ndim[held], PyBUF_STRIDES))
        held++;
    if (held == 3) {
        int32_t *label;
        const Py_ssize_t N = b[0].shape[1];
        *w = (Work){.x = b[0].buf, .norm = b[2].buf, .K = K, .W = W, .N = N};
        w->x_stride = b[0].strides[0] / FLOAT;
        if (b[0].shape[0] == W && b[1].shape[0] == K && b[1].shape[1] == N && b[2].shape[0] == N) {
            if ((w->label = label = PyMem_New(int32_t, N + 1))) {
                labels_of(label, b[1].buf, b[1].strides[0] / FLOAT, K, N);
                return 1;
            }
            PyErr_NoMemory();
        } else
            PyErr_SetString(PyExc_ValueError, "expected shapes (W, N), (K, N) and (N,) of each client");
    }
    while (held)
        PyBuffer_Release(b + --held);
    return 0;
}

#define HELD "fedsofim_kernel.clients"

typedef struct {
    Py_ssize_t N, i;
} Place;

typedef struct { /* clients whose arrays are looked up, for as long as this lives */
    Py_ssize_t count, K, W;
    Work *clients; /* without parameters, clip and transform */
    Py_buffer *buffers;
    Place *order; /* the largest first, so that threads end together */
} Held;

static int larger_first(const void *one, const void *other)
{
    const Py_ssize_t a = ((const Place *)one)->N, b = ((const Place *)other)->N;
    return (a < b) - (a > b);
}

static void let_go(Held *h)
{
    for (Py_ssize_t i = 0; i < 3 * h->count; i++)
        PyBuffer_Release(h->buffers + i);
    for (Py_ssize_t i = 0; i < h->count; i++)
        PyMem_Free((void *)h->clients[i].label);
    PyMem_Free(h->order);
    PyMem_Free(h->buffers);
    PyMem_Free(h->clients);
    PyMem_Free(h);
}

static void forget(PyObject *capsule) { let_go(PyCapsule_GetPointer(capsule, HELD)); }

/* A capsule of the clients whose arrays are in the lists, each of n. */
static PyObject *hold(PyObject **lists, Py_ssize_t n, Py_ssize_t K, Py_ssize_t W)
{
    Held *h;
    PyObject *capsule = NULL;
    for (int i = 0; i < 3; i++)
        if (!PyList_Check(lists[i]))
            return PyErr_Format(PyExc_TypeError, "expected lists of arrays");
        else if (PyList_GET_SIZE(lists[i]) != n)
            return PyErr_Format(PyExc_ValueError, "expected lists of %zd arrays", n);
    if (!(h = PyMem_Calloc(1, sizeof *h)))
        return PyErr_NoMemory();
    *h = (Held){0, K, W, PyMem_New(Work, n + 1), PyMem_New(Py_buffer, 3 * n + 1), PyMem_New(Place, n + 1)};
    if (!h->clients || !h->buffers || !h->order)
        PyErr_NoMemory();
    else {
        while (h->count < n &&
               get_client(h->clients + h->count, h->buffers + 3 * h->count, lists, h->count, K, W)) {
            h->order[h->count] = (Place){h->clients[h->count].N, h->count};
            h->count++;
        }
        qsort(h->order, h->count, sizeof *h->order, larger_first);
        if (h->count == n)
            capsule = PyCapsule_New(h, HELD, forget);
    }
    if (!capsule)
        let_go(h);
    return capsule;
}

static int fits(const Py_buffer *out, const Py_buffer *theta, const Py_buffer *clip,
                const Py_buffer *R)
{
    const Py_ssize_t *shape = out->shape, S = shape[1], K = shape[2], W = shape[3];
    int good = K >= 1 && clip->shape[0] == S && clip->strides[0] == FLOAT;
    for (int axis = 0; axis < 4; axis++)
        good = good && theta->shape[axis] == shape[axis];
    good = good && theta->strides[2] == W * FLOAT && (S == 1 || theta->strides[1] == K * W * FLOAT);
    if (R)
        good = good && R->shape[0] == S && R->shape[1] == K && R->shape[2] == K;
    if (!good)
        PyErr_SetString(PyExc_ValueError, "expected shapes (n, S, K, W) twice, (S,), (S, K, K)");
    return good;
}

typedef struct {
    const Held *held;
    const Py_buffer *out, *theta;
    const float *clip, *R;
} Call;

static void one_sum(const void *call, Py_ssize_t place, float *memory)
{
    const Call *c = call;
    const Py_ssize_t i = c->held->order[place].i, *shape = c->out->shape;
    Work work = c->held->clients[i];
    work.theta = (const float *)((const char *)c->theta->buf + i * c->theta->strides[0]);
    work.clip = c->clip, work.R = c->R, work.S = shape[1];
    client_sum((float *)c->out->buf + i * shape[1] * shape[2] * shape[3], memory, &work);
}

/* Write the sums of the clients that the capsule holds; 0 and an exception if it does not fit. */
static int sums(const Py_buffer *out, const Py_buffer *theta, const float *clip, const float *R,
                PyObject *capsule, Py_ssize_t threads)
{
    const Py_ssize_t n = out->shape[0], K = out->shape[2], W = out->shape[3];
    const Held *h = PyCapsule_GetPointer(capsule, HELD);
    const Call call = {h, out, theta, clip, R};
    const Task task = {one_sum, &call, n, client_room(K, W)};
    int good;
    if (!h)
        return 0;
    if (h->count != n || h->K != K || h->W != W) {
        PyErr_SetString(PyExc_ValueError, "these are other clients");
        return 0;
    }
    Py_BEGIN_ALLOW_THREADS
    good = share_out(&task, threads);
    Py_END_ALLOW_THREADS
    if (!good)
        PyErr_NoMemory();
    return good;
}

/* The lists are looked up once: what is returned may be given in place of x the next time. */
PyObject *clipped_sums(PyObject *self, PyObject *args)
{
    PyObject *arrays[4] = {NULL}, *lists[3], *held = NULL;
    Py_buffer b[4] = {{0}};
    const int ndim[4] = {4, 4, 1, 3}, dense = PyBUF_C_CONTIGUOUS;
    const int flags[4] = {dense | PyBUF_WRITABLE, PyBUF_STRIDES, PyBUF_STRIDES, dense};
    Py_ssize_t threads = 1;
    int got = 0, count;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOOO|On", arrays, arrays + 1, lists, lists + 1, lists + 2,
                          arrays + 2, arrays + 3, &threads))
        return NULL;
    count = arrays[3] && arrays[3] != Py_None ? 4 : 3;
    while (got < count && get_floats(arrays[got], b + got, ndim[got], flags[got]))
        got++;
    if (got == count && fits(b, b + 1, b + 2, count == 4 ? b + 3 : NULL)) {
        held = PyCapsule_CheckExact(lists[0])
                   ? Py_NewRef(lists[0])
                   : hold(lists, b[0].shape[0], b[0].shape[2], b[0].shape[3]);
        if (held && !sums(b, b + 1, b[2].buf, count == 4 ? b[3].buf : NULL, held, threads))
            Py_CLEAR(held);
    }
    while (got)
        PyBuffer_Release(b + --got);
    return held;
}

/* Sums become those of transformed gradients, each by itself. */
PyObject *transform_sums(PyObject *self, PyObject *args)
{
    PyObject *arrays[3] = {NULL}, *result = NULL;
    Py_buffer b[3] = {{0}}; /* totals, A, G */
    const int ndim[3] = {4, 2, 3}, dense = PyBUF_C_CONTIGUOUS;
    const int flags[3] = {dense | PyBUF_WRITABLE, dense, dense};
    int held = 0, count;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOO", arrays, arrays + 1, arrays + 2))
        return NULL;
    count = arrays[2] == Py_None ? 2 : 3;
    while (held < count && get_floats(arrays[held], b + held, ndim[held], flags[held]))
        held++;
    if (held == count) {
        const Py_ssize_t *shape = b[0].shape, S = shape[1], K = shape[2], W = shape[3];
        float *memory = NULL;
        if (b[1].shape[0] != W || b[1].shape[1] != W ||
            (count == 3 && (b[2].shape[0] != S || b[2].shape[1] != K || b[2].shape[2] != K)))
            PyErr_SetString(PyExc_ValueError, "expected shapes (n, S, K, W), (W, W) and (S, K, K)");
        else if (!(memory = PyMem_RawMalloc(factors_room(K, W) * sizeof *memory)))
            PyErr_NoMemory();
        else {
            Py_BEGIN_ALLOW_THREADS
            apply_factors(b[0].buf, memory, shape[0], S, K, W, count == 3 ? b[2].buf : NULL, b[1].buf);
            Py_END_ALLOW_THREADS
            result = Py_NewRef(Py_None);
        }
        PyMem_RawFree(memory);
    }
    while (held)
        PyBuffer_Release(b + --held);
    return result;
}
