/* From logits to the residuals of clipped gradients, for few examples at a time, whose logits stay in
   the nearest cache: what kernel.c does by itself and tiles.h between its two products. */

#ifndef FEDSOFIM_SOFTMAX_H
#define FEDSOFIM_SOFTMAX_H

#include "kernel.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define NEAR 128 /* examples at a time */

#if defined(__FAST_MATH__) || (defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0)
#error "NaN must be NaN, and float arithmetic that of floats"
#endif

/* Logits of examples, K rows `stride` floats apart, and one-hot labels, which are 0 or 1. */
typedef struct {
    float *z;
    const float *target;
    Py_ssize_t stride, target_stride, K;
    int n;
} Near;

/* With e_k = exp(z_k - max z) of an example: their sum, that of all but the label's, the squared norm
   of the residual times the sum, and what the label's row still lacks. */
typedef struct {
    float all[NEAR], others[NEAR], square[NEAR], label[NEAR];
} Softmax;

/* e^x for x in [-87, 88], to one unit in the last place or so; NaN stays NaN. */
INLINE float exponential(float x)
{
    const float round = 12583039.0f; /* 1.5 * 2^23 + 127: adding it leaves the nearest integer */
    float shifted = x * 1.44269504f + round;
    float n = shifted - round; /* x = n log 2 + r, |r| <= log 2 / 2 */
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f; /* the minimax polynomial of Cephes */
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits; /* the lowest of them are n + 127, the exponent of 2^n */
    memcpy(&bits, &shifted, sizeof bits);
    bits <<= 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

/* Logits become e_k, 0 where k is the label.

   The label's residual is minus the sum of the others' over the sum of all, so its norm loses nothing
   to cancellation; and exponentials below exp(-40) are exactly 0, so no square of one underflows. */
INLINE void exponentials(Softmax *s, const Near *near)
{
    const int n = near->n;
    float top[NEAR];
    memcpy(top, near->z, n * sizeof *top);
    for (int i = 0; i < n; i++)
        s->all[i] = s->others[i] = s->square[i] = 0.0f;
    for (Py_ssize_t k = 1; k < near->K; k++) {
        const float *row = near->z + k * near->stride;
        for (int i = 0; i < n; i++)
            top[i] = top[i] < row[i] ? row[i] : top[i];
    }
    for (Py_ssize_t k = 0; k < near->K; k++) {
        float *restrict row = near->z + k * near->stride;
        const float *restrict y = near->target + k * near->target_stride;
        for (int i = 0; i < n; i++) {
            float x = row[i] - top[i], e = exponential(x);
            e = x < -40.0f ? 0.0f : e;
            float o = e - y[i] * e; /* exact */
            row[i] = o;
            s->all[i] += e;
            s->others[i] += o;
            s->square[i] += o * o;
        }
    }
    for (int i = 0; i < n; i++) {
        s->square[i] += s->others[i] * s->others[i];
        s->label[i] = -s->others[i];
    }
}

/* Write the label's residuals, too, as a transform needs all of them. */
INLINE void fill_labels(Softmax *s, const Near *near)
{
    for (Py_ssize_t k = 0; k < near->K; k++) {
        float *restrict row = near->z + k * near->stride;
        const float *restrict y = near->target + k * near->target_stride;
        for (int i = 0; i < near->n; i++)
            row[i] += y[i] * s->label[i];
    }
    for (int i = 0; i < near->n; i++)
        s->label[i] = 0.0f;
}

/* What `exponentials` left becomes r * min(1, C / (the root of square / sum * norm)), or 0 where that
   norm is not finite, or so large that what is left of r would lose digits; whether some is 0 for
   that reason is returned. A norm that is NaN weighs 0. */
INLINE int weigh(const Softmax *s, const Near *near, const float *norm, float C)
{
    const float slack = 1.0f + near->K * FLT_EPSILON; /* a sum of K squares may be too small by less */
    const int n = near->n;
    float weight[NEAR], label[NEAR];
    int lost = 0;
    for (int i = 0; i < n; i++) {
        float t = 1.0f / s->all[i], g = sqrtf(s->square[i] * slack) * t * norm[i];
        float w = t * (C / (g <= C ? C : g)); /* NaN if g is */
        float most = s->others[i] > 0.0f ? w * s->others[i] : w; /* of what is left of r */
        weight[i] = most >= FLT_MIN / FLT_EPSILON ? w : 0.0f;
        label[i] = weight[i] > 0.0f ? s->label[i] * weight[i] : 0.0f;
    }
    for (int i = 0; i < n; i++) /* a loop of its own, or neither is vectorised */
        lost |= weight[i] == 0.0f;
    for (Py_ssize_t k = 0; k < near->K; k++) {
        float *restrict row = near->z + k * near->stride;
        const float *restrict y = near->target + k * near->target_stride;
        for (int i = 0; i < n; i++)
            row[i] = row[i] * weight[i] + y[i] * label[i];
        for (int i = 0; lost && i < n; i++) /* 0 times NaN is not 0 */
            row[i] = weight[i] > 0.0f ? row[i] : 0.0f;
    }
    return lost;
}

#endif
