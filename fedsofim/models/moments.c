/* The second moment of clipped features, for moments.py. */

#include "kernel.h"

#ifdef VECTORS

#include <float.h>
#include <math.h>

#define BLOCK 128 /* records at a time */
#define TILE 4  /* so many sums by so many stay in registers */
#define WIDTH 8 /* of a vector */

typedef float vector __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

/* Add the products of TILE rows with TILE rows to their sums, over a block. */
INLINE void add_products(vector *restrict sums, const float *restrict a, const float *restrict b)
{
    vector s[TILE * TILE];
    for (int k = 0; k < TILE * TILE; k++)
        s[k] = sums[k];
    for (int n = 0; n < BLOCK; n += WIDTH)
        for (int i = 0; i < TILE; i++)
            for (int j = 0; j < TILE; j++)
                s[i * TILE + j] += *(const vector *)(a + i * BLOCK + n) *
                                   *(const vector *)(b + j * BLOCK + n);
    for (int k = 0; k < TILE * TILE; k++)
        sums[k] = s[k];
}

/* Add c c' to the tiles of `sums` on the diagonal and below it, lane by lane, where c is a column of
   x, (F, N), moved by `shift` and clipped to norm `bound`, or 0 if its norm is not finite.

   BLAS would copy both factors of so small a product, and clipped columns go through memory three
   times: here a block is read once. It lies in c, whose rows beyond F are 0. */
EVERY_CPU
static void add_moment(vector *sums, float *c, const float *x, Py_ssize_t stride,
                       const float *shift, float bound, Py_ssize_t F, Py_ssize_t N)
{
    const float slack = 1.0f + F * FLT_EPSILON; /* a sum of F squares may be too small by less */
    for (Py_ssize_t start = 0; start < N; start += BLOCK) {
        const int n = (int)(N - start < BLOCK ? N - start : BLOCK);
        float weight[BLOCK] = {0};
        for (Py_ssize_t k = 0; k < F; k++) {
            const float *restrict from = x + k * stride + start;
            float *restrict row = c + k * BLOCK;
            for (int i = 0; i < n; i++) {
                row[i] = from[i] + shift[k];
                weight[i] += row[i] * row[i];
            }
        }
        for (int i = 0; i < n; i++) {
            float norm = sqrtf(weight[i] * slack + FLT_MIN), w = bound / (norm <= bound ? bound : norm);
            weight[i] = norm <= FLT_MAX ? w : 0.0f; /* also if it is NaN */
        }
        for (Py_ssize_t k = 0; k < F; k++) {
            float *restrict row = c + k * BLOCK;
            for (int i = 0; i < BLOCK; i++) /* what was left of the block before weighs 0 */
                row[i] = weight[i] > 0.0f ? row[i] * weight[i] : 0.0f;
        }
        vector *tile = sums;
        for (Py_ssize_t i = 0; i < F; i += TILE)
            for (Py_ssize_t j = 0; j <= i; j += TILE, tile += TILE * TILE)
                add_products(tile, c + i * BLOCK, c + j * BLOCK);
    }
}

/* Add up the lanes of the tiles, and write both triangles of S, (F, F). */
static void write_moment(float *S, const float *lanes, Py_ssize_t F)
{
    for (Py_ssize_t i = 0; i < F; i += TILE)
        for (Py_ssize_t j = 0; j <= i; j += TILE)
            for (int k = 0; k < TILE * TILE; k++, lanes += WIDTH) {
                const Py_ssize_t row = i + k / TILE, column = j + k % TILE;
                float total = 0;
                for (int lane = 0; lane < WIDTH; lane++)
                    total += lanes[lane];
                if (row < F && column < F)
                    S[row * F + column] = S[column * F + row] = total;
            }
}

PyObject *clipped_moment(PyObject *self, PyObject *args)
{
    PyObject *arrays[3] = {NULL}, *result = NULL;
    Py_buffer b[3] = {{0}};
    const int ndim[3] = {2, 1, 2}, dense = PyBUF_C_CONTIGUOUS;
    const int flags[3] = {PyBUF_STRIDES, dense, dense | PyBUF_WRITABLE};
    float bound;
    int held = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOfO", arrays, arrays + 1, &bound, arrays + 2))
        return NULL;
    while (held < 3 && get_floats(arrays[held], b + held, ndim[held], flags[held]))
        held++;
    if (held == 3) {
        const Py_ssize_t F = b[0].shape[0], N = b[0].shape[1], tiles = (F + TILE - 1) / TILE;
        float *c = NULL, *sums = NULL;
        if (b[1].shape[0] != F || b[2].shape[0] != F || b[2].shape[1] != F)
            PyErr_SetString(PyExc_ValueError, "expected shapes (F, N), (F,) and (F, F)");
        else if (!(c = PyMem_Calloc(tiles * TILE * BLOCK, sizeof *c)) ||
                 !(sums = PyMem_Calloc(tiles * (tiles + 1) / 2, TILE * TILE * sizeof(vector))))
            PyErr_NoMemory();
        else {
            Py_BEGIN_ALLOW_THREADS
            add_moment((vector *)sums, c, b[0].buf, b[0].strides[0] / FLOAT, b[1].buf, bound, F, N);
            write_moment(b[2].buf, sums, F);
            Py_END_ALLOW_THREADS
            result = Py_NewRef(Py_None);
        }
        PyMem_Free(c);
        PyMem_Free(sums);
    }
    while (held)
        PyBuffer_Release(b + --held);
    return result;
}

#endif
