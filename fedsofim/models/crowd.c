/* The clipped gradient sums of many clients in one call, each by client.c: what they are is the same in
   every company. */

#include "kernel.h"

/* The arrays of one client; 0 and an exception if they do not fit. */
static int get_client(Work *w, Py_buffer *b, PyObject **lists, Py_ssize_t i)
{
    const int ndim[3] = {2, 2, 1};
    int held = 0;
    while (held < 3 &&
           get_floats(PyList_GET_ITEM(lists[held], i), b + held, ndim[held], PyBUF_STRIDES))
        held++;
    if (held == 3) {
        w->x = b[0].buf, w->target = b[1].buf, w->norm = b[2].buf, w->N = b[0].shape[1];
        w->x_stride = b[0].strides[0] / FLOAT, w->target_stride = b[1].strides[0] / FLOAT;
        if (b[0].shape[0] == w->W && b[1].shape[0] == w->K && b[1].shape[1] == w->N &&
            b[2].shape[0] == w->N)
            return 1;
        PyErr_SetString(PyExc_ValueError, "expected shapes (W, N), (K, N) and (N,) of each client");
    }
    while (held)
        PyBuffer_Release(b + --held);
    return 0;
}

static int fits(const Py_buffer *out, const Py_buffer *theta, const Py_buffer *clip,
                const Py_buffer *U, PyObject **lists)
{
    const Py_ssize_t *shape = out->shape, S = shape[1], K = shape[2], W = shape[3];
    int good = K >= 1 && clip->shape[0] == S && clip->strides[0] == FLOAT;
    for (int axis = 0; axis < 4; axis++)
        good = good && theta->shape[axis] == shape[axis];
    good = good && theta->strides[2] == W * FLOAT && (S == 1 || theta->strides[1] == K * W * FLOAT);
    if (U)
        good = good && U->shape[0] == S && U->shape[1] == K && U->shape[2] == K;
    for (int i = 0; i < 3; i++)
        good = good && PyList_GET_SIZE(lists[i]) == shape[0];
    if (!good)
        PyErr_SetString(PyExc_ValueError, "expected shapes (n, S, K, W), lists of n, (S,), (S, K, K)");
    return good;
}

static PyObject *sums(const Py_buffer *out, const Py_buffer *theta, const float *clip,
                      const float *U, PyObject **lists)
{
    const Py_ssize_t n = out->shape[0], S = out->shape[1], K = out->shape[2], W = out->shape[3];
    Work *clients = PyMem_New(Work, n ? n : 1);
    Py_buffer *buffers = PyMem_New(Py_buffer, n ? 3 * n : 1);
    float *memory = PyMem_RawMalloc(client_room(K, W) * sizeof *memory);
    Py_ssize_t held = 0;
    if (!clients || !buffers || !memory)
        PyErr_NoMemory();
    else {
        for (; held < n; held++) {
            const char *at = (const char *)theta->buf + held * theta->strides[0];
            clients[held] = (Work){.theta = (const float *)at, .clip = clip, .U = U, .S = S, .K = K, .W = W};
            if (!get_client(clients + held, buffers + 3 * held, lists, held))
                break;
        }
        if (held == n) {
            Py_BEGIN_ALLOW_THREADS
            for (Py_ssize_t i = 0; i < n; i++)
                client_sum((float *)out->buf + i * S * K * W, memory, clients + i);
            Py_END_ALLOW_THREADS
        }
        for (Py_ssize_t i = 0; i < 3 * held; i++)
            PyBuffer_Release(buffers + i);
    }
    PyMem_RawFree(memory);
    PyMem_Free(buffers);
    PyMem_Free(clients);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

PyObject *clipped_sums(PyObject *self, PyObject *args)
{
    PyObject *arrays[4] = {NULL}, *lists[3], *result = NULL;
    Py_buffer b[4] = {{0}};
    const int ndim[4] = {4, 4, 1, 3}, dense = PyBUF_C_CONTIGUOUS;
    const int flags[4] = {dense | PyBUF_WRITABLE, PyBUF_STRIDES, PyBUF_STRIDES, dense};
    int held = 0, count;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOO!O!O!O|O", arrays, arrays + 1, &PyList_Type, lists, &PyList_Type,
                          lists + 1, &PyList_Type, lists + 2, arrays + 2, arrays + 3))
        return NULL;
    count = arrays[3] && arrays[3] != Py_None ? 4 : 3;
    while (held < count && get_floats(arrays[held], b + held, ndim[held], flags[held]))
        held++;
    if (held == count && fits(b, b + 1, b + 2, count == 4 ? b + 3 : NULL, lists))
        result = sums(b, b + 1, b[2].buf, count == 4 ? b[3].buf : NULL, lists);
    while (held)
        PyBuffer_Release(b + --held);
    return result;
}
