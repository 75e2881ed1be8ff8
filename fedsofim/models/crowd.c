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

typedef struct {
    const Held *held;
    Py_buffer b[6]; /* sums, parameters, clips, R, A, G: what may be wanting has no object */
    float *last; /* columns of A */
    Py_ssize_t threads;
    int moment;
} Call;

static int has_shape(const Py_buffer *b, const Py_ssize_t *shape)
{
    for (int axis = 0; axis < b->ndim; axis++)
        if (b->shape[axis] != shape[axis])
            return 0;
    return 1; /* what is wanting has no axes */
}

static int fits(const Call *c)
{
    const Py_buffer *theta = c->b + 1, *clip = c->b + 2;
    const Py_ssize_t S = theta->shape[1], K = theta->shape[2], W = theta->shape[3];
    const Py_ssize_t shapes[6][4] = {
        {theta->shape[0], S, K, c->moment ? K : W}, {theta->shape[0], S, K, W}, {S}, {S, K, K}, {W, W},
        {S, K, K}};
    int good = K >= 1 && W >= 1 && clip->strides[0] == FLOAT;
    good = good && !(c->b[4].obj ? c->moment : !!c->b[5].obj);
    for (int i = 0; i < 6; i++)
        good = good && has_shape(c->b + i, shapes[i]);
    good = good && (K == 1 || theta->strides[2] == W * FLOAT);
    good = good && (S == 1 || theta->strides[1] == K * W * FLOAT);
    if (!good)
        PyErr_SetString(PyExc_ValueError, "expected shapes (n, S, K, W) twice, (S,), (S, K, K), (W, W)");
    return good;
}

static void one_sum(const void *call, Py_ssize_t place, float *memory)
{
    const Call *c = call;
    const Py_buffer *out = c->b, *theta = c->b + 1;
    const Py_ssize_t i = c->held->order[place].i, *shape = theta->shape;
    float *total = (float *)((char *)out->buf + i * out->strides[0]);
    Work work = c->held->clients[i];
    work.theta = (const float *)((const char *)theta->buf + i * theta->strides[0]);
    work.clip = c->b[2].buf, work.R = c->b[3].buf, work.S = shape[1], work.moment = c->moment;
    client_sum(total, memory, &work);
    if (c->last)
        apply_factors(total, memory, 1, shape[1], shape[2], shape[3], c->b[5].buf, c->b[4].buf, c->last);
}

/* Write the sums of the clients that the capsule holds; 0 and an exception if it does not fit. */
static int sums(Call *c, PyObject *capsule)
{
    const Py_ssize_t *shape = c->b[1].shape, n = shape[0], K = shape[2], W = shape[3];
    const Py_ssize_t room = client_room(&(Work){.K = K, .W = W, .moment = c->moment});
    const Py_ssize_t more = c->b[4].obj ? factors_room(K, W) : 0;
    const Task task = {one_sum, c, n, room > more ? room : more};
    const Held *h = c->held = PyCapsule_GetPointer(capsule, HELD);
    int good;
    if (!h)
        return 0;
    if (h->count != n || h->K != K || h->W != W) {
        PyErr_SetString(PyExc_ValueError, "these are other clients");
        return 0;
    }
    Py_BEGIN_ALLOW_THREADS
    good = !c->b[4].obj || (c->last = last_columns(c->b[4].buf, W));
    good = good && share_out(&task, c->threads);
    PyMem_RawFree(c->last);
    Py_END_ALLOW_THREADS
    if (!good)
        PyErr_NoMemory();
    return good;
}

/* The lists are looked up once: what is returned may be given in place of x the next time. */
PyObject *clipped_sums(PyObject *self, PyObject *args)
{
    PyObject *arrays[6] = {NULL}, *lists[3], *held = NULL;
    Call c = {.threads = 1};
    const int ndim[6] = {4, 4, 1, 3, 2, 3}, dense = PyBUF_C_CONTIGUOUS;
    const int flags[6] = {dense | PyBUF_WRITABLE, PyBUF_STRIDES, PyBUF_STRIDES, dense, dense, dense};
    int got = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOOOO|OnOOp", arrays, arrays + 1, lists, lists + 1, lists + 2, arrays + 2,
                          arrays + 3, &c.threads, arrays + 4, arrays + 5, &c.moment))
        return NULL;
    while (got < 6 && ((got > 2 && (!arrays[got] || arrays[got] == Py_None)) ||
                       get_floats(arrays[got], c.b + got, ndim[got], flags[got])))
        got++;
    if (got == 6 && fits(&c)) {
        const Py_ssize_t *shape = c.b[1].shape;
        held = PyCapsule_CheckExact(lists[0]) ? Py_NewRef(lists[0]) : hold(lists, shape[0], shape[2], shape[3]);
        if (held && !sums(&c, held))
            Py_CLEAR(held);
    }
    while (got)
        PyBuffer_Release(c.b + --got);
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
        float *memory = NULL, *last = NULL;
        if (b[1].shape[0] != W || b[1].shape[1] != W ||
            (count == 3 && (b[2].shape[0] != S || b[2].shape[1] != K || b[2].shape[2] != K)))
            PyErr_SetString(PyExc_ValueError, "expected shapes (n, S, K, W), (W, W) and (S, K, K)");
        else if (!(memory = PyMem_RawMalloc(factors_room(K, W) * sizeof *memory)) ||
                 !(last = last_columns(b[1].buf, W)))
            PyErr_NoMemory();
        else {
            Py_BEGIN_ALLOW_THREADS
            apply_factors(b[0].buf, memory, shape[0], S, K, W, count == 3 ? b[2].buf : NULL, b[1].buf, last);
            Py_END_ALLOW_THREADS
            result = Py_NewRef(Py_None);
        }
        PyMem_RawFree(memory);
        PyMem_RawFree(last);
    }
    while (held)
        PyBuffer_Release(b + --held);
    return result;
}
