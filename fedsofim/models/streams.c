/* NumPy's random streams without what it costs to make one: a bit generator that can be given
   another key.

   Its numbers are those of PCG64(SeedSequence(seed, spawn_key)), the bits in which NumPy counts on:
   O'Neill's seed_seq for the state, and PCG XSL-RR 128/64 for the numbers. numpy.random.Generator
   takes it as one of NumPy's own, by the interface that NumPy offers to other bit generators. */

#include "streams.h"

#include <string.h>

#define POOL 4

static double next_double(void *self) { return (next_uint64(self) >> 11) * (1.0 / 9007199254740992.0); }

static uint32_t hashed(uint32_t value, uint32_t *constant, uint32_t multiplier)
{
    value ^= *constant;
    *constant *= multiplier;
    value *= *constant;
    return value ^ value >> 16;
}

static uint32_t mixed(uint32_t x, uint32_t y)
{
    const uint32_t value = 0xca01f9ddu * x - 0x4973f715u * y;
    return value ^ value >> 16;
}

/* Set the state that the first `count` words stand for. */
static void begin(Stream *s, Py_ssize_t count)
{
    uint32_t pool[POOL], constant = 0x43b0d7e5u, made[4 * POOL / 2];
    uint64_t v[POOL];
    for (int i = 0; i < POOL; i++)
        pool[i] = hashed(i < count ? s->words[i] : 0, &constant, 0x931e8875u);
    for (int from = 0; from < POOL; from++)
        for (int to = 0; to < POOL; to++)
            if (from != to)
                pool[to] = mixed(pool[to], hashed(pool[from], &constant, 0x931e8875u));
    for (Py_ssize_t from = POOL; from < count; from++)
        for (int to = 0; to < POOL; to++)
            pool[to] = mixed(pool[to], hashed(s->words[from], &constant, 0x931e8875u));
    constant = 0x8b51f9ddu;
    for (int i = 0; i < 2 * POOL; i++)
        made[i] = hashed(pool[i % POOL], &constant, 0x58f38dedu);
    for (int i = 0; i < POOL; i++)
        v[i] = (uint64_t)made[2 * i + 1] << 32 | made[2 * i];
    s->increment = (Wide){v[2] << 1 | v[3] >> 63, v[3] << 1 | 1};
    s->state = (Wide){0, 0};
    advance(s);
    s->state = plus(s->state, (Wide){v[0], v[1]});
    advance(s);
    s->has_spare = 0;
}

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *names)
{
    Py_buffer words;
    Stream *s;
    PyObject *threading;
    (void)names;
    if (!PyArg_ParseTuple(args, "y*", &words))
        return NULL;
    if (words.len % 4 || words.len / 4 > MOST - 2) {
        PyBuffer_Release(&words);
        return PyErr_Format(PyExc_ValueError, "expected at most %d words of 4 bytes", MOST - 2);
    }
    if ((s = (Stream *)type->tp_alloc(type, 0))) {
        memcpy(s->words, words.buf, words.len);
        s->count = words.len / 4;
        s->bits = (Bits){s, next_uint64, next_uint32, next_double, next_uint64};
        begin(s, s->count);
        if ((threading = PyImport_ImportModule("threading"))) {
            s->lock = PyObject_CallMethod(threading, "Lock", NULL);
            Py_DECREF(threading);
        }
        if (!s->lock)
            Py_CLEAR(s);
    }
    PyBuffer_Release(&words);
    return (PyObject *)s;
}

void begin_stream(Stream *s, const uint32_t *last, Py_ssize_t count)
{
    memcpy(s->words + s->count, last, count * sizeof *last);
    begin(s, s->count + count);
}

static PyObject *seek(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Stream *s = (Stream *)self;
    uint32_t last[2];
    if (count > 2)
        return PyErr_Format(PyExc_TypeError, "expected at most two numbers");
    for (Py_ssize_t i = 0; i < count; i++) {
        const unsigned long long word = PyLong_AsUnsignedLongLong(args[i]);
        if (PyErr_Occurred())
            return NULL;
        if (word > UINT32_MAX)
            return PyErr_Format(PyExc_OverflowError, "expected numbers below 2^32");
        last[i] = (uint32_t)word;
    }
    begin_stream(s, last, count);
    Py_RETURN_NONE;
}

static PyObject *capsule(PyObject *self, void *unused)
{
    (void)unused; /* a Generator copies what is inside, and keeps us for as long as it lives */
    return PyCapsule_New(&((Stream *)self)->bits, "BitGenerator", NULL);
}

static PyObject *lock(PyObject *self, void *unused)
{
    (void)unused;
    return Py_NewRef(((Stream *)self)->lock);
}

static void drop(PyObject *self)
{
    Py_XDECREF(((Stream *)self)->lock);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef methods[] = {
    {"seek", (PyCFunction)(void (*)(void))seek, METH_FASTCALL,
     "seek(*key)\n--\n\nBegin the stream whose key has these numbers, below 2^32, in the end."},
    {"normals", stream_normals, METH_VARARGS, stream_normals_doc},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef values[] = {
    {"capsule", capsule, NULL, "What a numpy.random.Generator takes.", NULL},
    {"lock", lock, NULL, "Held while numbers are drawn.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject StreamType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "fedsofim_kernel.Stream",
    .tp_basicsize = sizeof(Stream),
    .tp_doc = "A bit generator for numpy.random.Generator, of the bits of PCG64(SeedSequence).\n\n"
              "Args: the words of a key as bytes, as SeedSequence puts it together.",
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = make,
    .tp_dealloc = drop,
    .tp_methods = methods,
    .tp_getset = values,
};
