/* Features as a file holds them, one record a row, become floats, one record a column, for held.c.

   The bits are those of NumPy's steps: codes become floats, then come `scale` and `lo`, each rounded. */

#if defined(__clang__) /* products are rounded before they are added to */
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

#include "decode.h"

#include <string.h>

#define TILE 16  /* records at a time, and bytes of each */
#define AHEAD 32 /* so many records ahead features are asked for: in a file they lie apart */
#define LINE 64  /* bytes of a cache line */

INLINE const unsigned char *row_of(const Job *job, Py_ssize_t i, const int size)
{
    return job->rows + (job->which ? job->which[i] : i) * job->F * size;
}

/* The float that half a one stands for: its bits in their places, and the exponent moved. */
INLINE float of_half(uint16_t half)
{
    uint32_t bits = (half & 0x7fffu) << 13;
    float x;
    memcpy(&x, &bits, sizeof x);
    x *= 0x1p112f;
    memcpy(&bits, &x, sizeof x);
    bits |= (half & 0x8000u) << 16 | ((half & 0x7c00) == 0x7c00 ? 0x7f800000u : 0);
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Write one number, of so many bytes. */
INLINE void write_one(const Job *job, Py_ssize_t i, Py_ssize_t f, const int size)
{
    const unsigned char *at = row_of(job, i, size) + f * size;
    float x;
    uint16_t half;
    if (size == 1)
        x = *at;
    else if (size == 2) {
        memcpy(&half, at, sizeof half);
        x = of_half(half);
    } else
        memcpy(&x, at, sizeof x);
    if (job->scale) {
        x *= job->scale[f];
        x += job->lo[f];
    }
    job->out[f * job->stride + i] = x;
}

#ifdef SHUFFLE
typedef unsigned char bytes __attribute__((vector_size(TILE), aligned(1), may_alias));
typedef uint16_t halves __attribute__((vector_size(TILE), aligned(1), may_alias));
typedef uint32_t quads __attribute__((vector_size(TILE), aligned(1), may_alias));
typedef uint16_t shorts __attribute__((vector_size(2 * TILE), aligned(1), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * TILE), aligned(1), may_alias));
typedef uint32_t words __attribute__((vector_size(4 * TILE), aligned(1), may_alias));
typedef float floats __attribute__((vector_size(4 * TILE), aligned(1), may_alias));

/* Interleave the first half of the vectors with the second. Four times this, and numbers that lay below
   each other lie one after another: each time, what says where a number is, its vector and its place
   there, turns by one bit. */
#define INTERLEAVED(kind, low, high)                                \
    INLINE void interleave_##kind(kind *to, const kind *from)       \
    {                                                               \
        for (int i = 0; i < TILE / 2; i++) {                        \
            to[2 * i] = SHUFFLE(from[i], from[i + TILE / 2], low);  \
            to[2 * i + 1] = SHUFFLE(from[i], from[i + TILE / 2], high); \
        }                                                           \
    }
#define TURNED(kind)                                        \
    INLINE void turn_##kind(kind *tile)                     \
    {                                                       \
        kind other[TILE];                                   \
        interleave_##kind(other, tile);                     \
        interleave_##kind(tile, other);                     \
        interleave_##kind(other, tile);                     \
        interleave_##kind(tile, other);                     \
    }
#define LOW_BYTES 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH_BYTES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define LOW_HALVES 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH_HALVES 4, 12, 5, 13, 6, 14, 7, 15
#define LOW_QUADS 0, 4, 1, 5
#define HIGH_QUADS 2, 6, 3, 7
INTERLEAVED(bytes, LOW_BYTES, HIGH_BYTES)
INTERLEAVED(halves, LOW_HALVES, HIGH_HALVES)
INTERLEAVED(quads, LOW_QUADS, HIGH_QUADS)
TURNED(bytes)
TURNED(halves)
TURNED(quads)

/* TILE bytes become floats: step by step, as GCC would not do it at once. */
INLINE void of_bytes(floats *to, const bytes *from)
{
    const shorts wide = __builtin_convertvector(*from, shorts);
    *to = __builtin_convertvector(__builtin_convertvector(wide, ints), floats);
}

/* TILE halves become floats, as in of_half. */
INLINE void of_halves(floats *to, const shorts *from)
{
    const words half = __builtin_convertvector(*from, words), bits = (half & 0x7fff) << 13;
    *to = *(const floats *)&bits * 0x1p112f;
    *(words *)to |= (half & 0x8000) << 16 | ((words)((half & 0x7c00) == 0x7c00) & 0x7f800000);
}

/* Write so many bytes of TILE records, from record i and feature f on. */
INLINE void write_tile(const Job *job, Py_ssize_t i, Py_ssize_t f, const int size)
{
    bytes tile[TILE];
    for (int k = 0; k < TILE; k++)
        tile[k] = *(const bytes *)(row_of(job, i + k, size) + f * size);
    if (size == 1)
        turn_bytes(tile);
    else if (size == 2)
        turn_halves((halves *)tile);
    else
        turn_quads((quads *)tile);
    for (int k = 0; k < TILE / size; k++, f++) {
        floats x;
        if (size == 1)
            of_bytes(&x, tile + k);
        else if (size == 2)
            of_halves(&x, (const shorts *)tile + k);
        else
            x = ((const floats *)tile)[k];
        if (job->scale) {
            x *= job->scale[f];
            x += job->lo[f];
        }
        *(floats *)(job->out + f * job->stride + i) = x;
    }
}

/* Write the features of TILE records from i on, and ask for others. */
INLINE void write_records(const Job *job, Py_ssize_t i, const int size)
{
    Py_ssize_t f = 0;
    if (i + AHEAD + TILE <= job->n)
        for (int k = 0; k < TILE; k++)
            for (Py_ssize_t at = 0; at < job->F * size + LINE - 1; at += LINE) /* it begins in a line's midst */
                __builtin_prefetch(row_of(job, i + AHEAD + k, size) + at);
    for (; f + TILE / size <= job->F; f += TILE / size)
        write_tile(job, i, f, size);
    for (; f < job->F; f++)
        for (int k = 0; k < TILE; k++)
            write_one(job, i + k, f, size);
}
#endif

INLINE void write_all(const Job *given, const int size)
{
    const Job own = *given, *job = &own; /* that no store can change */
    Py_ssize_t i = 0;
#ifdef SHUFFLE
    for (; i + TILE <= job->n; i += TILE)
        write_records(job, i, size);
#endif
    for (; i < job->n; i++)
        for (Py_ssize_t f = 0; f < job->F; f++)
            write_one(job, i, f, size);
}

EVERY_CPU static void write_codes(const Job *job) { write_all(job, 1); }
EVERY_CPU static void write_halves(const Job *job) { write_all(job, 2); }
EVERY_CPU static void write_floats(const Job *job) { write_all(job, 4); }

void write_features(const Job *job, int size)
{
    if (size == 1)
        write_codes(job);
    else if (size == 2)
        write_halves(job);
    else
        write_floats(job);
}
