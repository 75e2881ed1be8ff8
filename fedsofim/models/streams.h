/* A random stream of NumPy's and its numbers, for streams.c and normals.c. */

#ifndef FEDSOFIM_STREAMS_H
#define FEDSOFIM_STREAMS_H

#include "kernel.h"

#include <stdint.h>

#define MOST 64 /* words of a key */

typedef struct { /* numpy/random/bitgen.h */
    void *state;
    uint64_t (*next_uint64)(void *);
    uint32_t (*next_uint32)(void *);
    double (*next_double)(void *);
    uint64_t (*next_raw)(void *);
} Bits;

typedef struct {
    uint64_t high, low;
} Wide;

typedef struct {
    PyObject_HEAD
    Wide state, increment;
    uint32_t words[MOST], spare;
    Py_ssize_t count; /* of the words that all keys begin with */
    int has_spare;
    Bits bits;
    PyObject *lock;
} Stream;

INLINE Wide plus(Wide a, Wide b)
{
    const uint64_t low = a.low + b.low;
    return (Wide){a.high + b.high + (low < a.low), low};
}

#ifndef __SIZEOF_INT128__
INLINE Wide times(Wide a, Wide b)
{
    const uint64_t mask = 0xffffffffu, a0 = a.low & mask, a1 = a.low >> 32, b0 = b.low & mask,
                   b1 = b.low >> 32;
    const uint64_t low = a0 * b0, mid = a1 * b0 + (low >> 32), other = a0 * b1 + (mid & mask);
    return (Wide){a1 * b1 + (mid >> 32) + (other >> 32) + a.high * b.low + a.low * b.high,
                  (other << 32) | (low & mask)};
}
#endif

INLINE void advance(Stream *s)
{
    const Wide multiplier = {2549297995355413924u, 4865540595714422341u};
#ifdef __SIZEOF_INT128__
    const unsigned __int128 m = (unsigned __int128)multiplier.high << 64 | multiplier.low,
                            i = (unsigned __int128)s->increment.high << 64 | s->increment.low,
                            x = ((unsigned __int128)s->state.high << 64 | s->state.low) * m + i;
    s->state = (Wide){(uint64_t)(x >> 64), (uint64_t)x};
#else
    s->state = plus(times(s->state, multiplier), s->increment);
#endif
}

INLINE uint64_t next_uint64(void *self)
{
    Stream *s = self;
    advance(s);
    const uint64_t mixed = s->state.high ^ s->state.low;
    const unsigned turn = (unsigned)(s->state.high >> 58);
    return mixed >> turn | mixed << (-turn & 63);
}

INLINE uint32_t next_uint32(void *self)
{
    Stream *s = self;
    if (s->has_spare) {
        s->has_spare = 0;
        return s->spare;
    }
    const uint64_t both = next_uint64(s);
    s->has_spare = 1;
    s->spare = (uint32_t)(both >> 32);
    return (uint32_t)both;
}

/* streams.c: set the state that the key stands for, whose last words, at most two, are given. */
void begin_stream(Stream *s, const uint32_t *last, Py_ssize_t count);

/* normals.c: a method of Stream */
PyObject *stream_normals(PyObject *self, PyObject *args);
extern const char stream_normals_doc[];

#endif
