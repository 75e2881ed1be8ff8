/* The normal numbers of many streams in one call, each the first of numpy.random.Generator's.

   They are NumPy's float32 ones: 256 layers of Marsaglia and Tang's ziggurat, a number's layer, sign
   and place in it from one word of 32 bits. Here the generator is known when this is compiled, and
   no call stands between two numbers. */

#if defined(__clang__) /* products are rounded before they are added to, as NumPy's are */
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

#include "streams.h"

#include <math.h>
#include <string.h>

#define LAYERS 256
#define BLOCK 1024 /* words at a time */
#define EDGE 3.6541528853610088 /* where the lowest layer's tail begins */

static struct {
    float width[LAYERS], height[LAYERS]; /* of a layer over 2^23; the density where it ends */
    uint32_t inside[LAYERS];             /* below it, a place is under the curve in any case */
    int made;
} layers;

static double density(double x) { return exp(-0.5 * x * x); }

/* From the lowest layer up, all of one area. */
static void make_layers(void)
{
    const double area = EDGE * density(EDGE) + sqrt(acos(-1.0) / 2) * erfc(EDGE / sqrt(2.0));
    double x = EDGE, base = area / density(EDGE);
    layers.width[0] = (float)(base / 8388608);
    layers.height[0] = 1.0f;
    layers.inside[0] = (uint32_t)(EDGE / base * 8388608 + 0.5);
    for (int i = LAYERS - 1; i > 0; i--) {
        const double above = i > 1 ? sqrt(-2 * log(area / x + density(x))) : 0.0;
        layers.width[i] = (float)(x / 8388608);
        layers.height[i] = (float)density(x);
        layers.inside[i] = (uint32_t)(above / x * 8388608 + 0.5);
        x = above;
    }
    layers.made = 1;
}

/* Words of a stream, and what most of them are: numbers. */
typedef struct {
    Stream *stream;
    int count, next; /* words that are here; the one that comes next */
    int strays, stray; /* words near the curve; the one that comes next */
    uint32_t word[BLOCK], near[BLOCK];
    float number[BLOCK];
    int16_t at[BLOCK + 1]; /* where words near the curve are */
} Words;

EVERY_CPU
static void sort_words(Words *w, int count)
{
    static const float sign[2] = {1.0f, -1.0f}; /* read, not chosen: no branch */
    for (int i = 0; i < count; i++) {
        const uint32_t word = w->word[i], layer = word & 255, place = word >> 9;
        const float x = (float)(int32_t)place * layers.width[layer];
        w->number[i] = x * sign[word >> 8 & 1];
        w->near[i] = place >= layers.inside[layer];
    }
    w->strays = w->stray = 0;
    for (int i = 0; i < count; i++) {
        w->at[w->strays] = (int16_t)i;
        w->strays += (int)w->near[i];
    }
    w->at[w->strays] = (int16_t)count;
}

/* The next words, at least so many if there is room. */
static void more_words(Words *w, Py_ssize_t wanted)
{
    const int count = wanted < BLOCK ? ((int)wanted + 1) & ~1 : BLOCK;
    Stream s = *w->stream;
    for (int i = 0; i < count; i += 2) {
        const uint64_t both = next_uint64(&s);
        w->word[i] = (uint32_t)both;
        w->word[i + 1] = (uint32_t)(both >> 32);
    }
    *w->stream = s;
    w->count = count;
    w->next = 0;
    sort_words(w, count);
}

static float uniform(Words *w)
{
    if (w->next == w->count)
        more_words(w, 2);
    return (float)(w->word[w->next++] >> 8) * (1.0f / 16777216.0f);
}

/* A number beyond the lowest layer's edge. */
static float tail(Words *w, int negative)
{
    for (;;) {
        const float x = -(float)(1 / EDGE) * log1pf(-uniform(w)), y = -log1pf(-uniform(w));
        if (y + y > x * x)
            return negative ? -((float)EDGE + x) : (float)EDGE + x;
    }
}

/* What comes of a word near the curve; 0 if it is nothing, and the next one decides. */
static int near_curve(Words *w, float *out)
{
    const uint32_t word = w->word[w->next], layer = word & 255;
    const float x = w->number[w->next++], *y = layers.height + layer;
    if (layer == 0) {
        *out = tail(w, word >> 17 & 1);
        return 1;
    }
    const float part = (y[-1] - y[0]) * uniform(w);
    *out = x;
    return part + y[0] < exp(-0.5 * x * x);
}

/* Fill `out` with the first numbers of the stream. */
static void fill(Words *w, float *out, Py_ssize_t length)
{
    w->next = w->count = 0;
    while (length) {
        if (w->next == w->count)
            more_words(w, length + length / 32 + 8); /* one in 80 is near the curve */
        while (w->at[w->stray] < w->next) /* it was used to decide about another */
            w->stray++;
        const Py_ssize_t good = w->at[w->stray] - w->next, n = good < length ? good : length;
        memcpy(out, w->number + w->next, n * sizeof *out);
        out += n;
        length -= n;
        w->next += (int)n;
        if (length && w->next < w->count && near_curve(w, out)) {
            out++;
            length--;
        }
    }
}

/* What was there plus std times a number, over the size: each rounded, as NumPy does. */
EVERY_CPU
static void add_noise(float *out, const float *noise, Py_ssize_t length, float std, float size)
{
    for (Py_ssize_t k = 0; k < length; k++)
        out[k] = (out[k] + noise[k] * std) / size;
}

const char stream_normals_doc[] =
    "normals(rows, ids, draw, std=0.0, sizes=None)\n--\n\n"
    "Fill each row, float32, with the first standard normals of the stream whose key ends with its "
    "id, uint32, and `draw`; with sizes, float32, make it (row + std * normals) / size instead.";

static int fits(PyObject **arrays, Py_buffer *b, int *held)
{
    if (!get_floats(arrays[0], b, 2, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE))
        return 0;
    *held = 1;
    if (PyObject_GetBuffer(arrays[1], b + 1, PyBUF_C_CONTIGUOUS))
        return 0;
    *held = 2;
    if (arrays[2]) {
        if (!get_floats(arrays[2], b + 2, 1, PyBUF_C_CONTIGUOUS))
            return 0;
        *held = 3;
    }
    if (b[1].itemsize == sizeof(uint32_t) && b[1].len == 4 * b[0].shape[0] &&
        (*held == 2 || b[2].shape[0] == b[0].shape[0]))
        return 1;
    PyErr_SetString(PyExc_ValueError, "expected shapes (n, length), (n,) and (n,)");
    return 0;
}

PyObject *stream_normals(PyObject *self, PyObject *args)
{
    PyObject *arrays[3] = {NULL};
    Py_buffer b[3] = {{0}};
    Words *words = NULL;
    unsigned int draw;
    double std = 0;
    int held = 0;
    if (!PyArg_ParseTuple(args, "OOI|dO", arrays, arrays + 1, &draw, &std, arrays + 2))
        return NULL;
    if (fits(arrays, b, &held)) {
        const Py_ssize_t n = b[0].shape[0], length = b[0].shape[1];
        const float *sizes = b[2].buf;
        if (!(words = PyMem_RawMalloc(sizeof *words + (sizes ? length : 0) * sizeof(float))))
            PyErr_NoMemory();
        else {
            if (!layers.made)
                make_layers();
            words->stream = (Stream *)self;
            Py_BEGIN_ALLOW_THREADS
            for (Py_ssize_t i = 0; i < n; i++) {
                float *row = (float *)b[0].buf + i * length, *noise = (float *)(words + 1);
                const uint32_t last[2] = {((const uint32_t *)b[1].buf)[i], draw};
                begin_stream(words->stream, last, 2);
                fill(words, sizes ? noise : row, length);
                if (sizes)
                    add_noise(row, noise, length, (float)std, sizes[i]);
            }
            Py_END_ALLOW_THREADS
        }
    }
    PyMem_RawFree(words);
    while (held)
        PyBuffer_Release(b + --held);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}
