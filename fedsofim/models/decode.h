/* Features that stay as a file holds them, for held.c and decode.c. */

#ifndef FEDSOFIM_DECODE_H
#define FEDSOFIM_DECODE_H

#include "kernel.h"

#include <stdint.h>

/* n records of F features; `which` are their rows, NULL is the first. Rows of out are `stride` floats
   apart. scale and lo are of F features, or NULL. */
typedef struct {
    float *out;
    const unsigned char *rows;
    const int32_t *which;
    const float *scale, *lo;
    Py_ssize_t stride, F, n;
} Job;

/* decode.c: write the features, of so many bytes each: 8-bit codes, half or single precision. */
void write_features(const Job *job, int size);

#endif
