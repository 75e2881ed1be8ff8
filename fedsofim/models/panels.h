/* Products over blocks of records, for one kind of CPU: moments.c includes this once a kind, with

       NAME(f)   the name of a function for it,
       LANES     how many numbers it works on at once,
       SIDE      a tile of ROWS sums by so many vectors stays in its registers,
       WIDE      and so does one of TILE by so many.

   BLAS would copy both factors of so small a product, and records would go through memory once more
   for their norms. */

typedef float NAME(vector) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Add the products of TILE rows with TILE rows to their sums, over a block. */
INLINE void NAME(add_products)(NAME(vector) *restrict sums, const float *restrict a,
                               const float *restrict b)
{
    for (int first = 0; first < TILE; first += WIDE) {
        NAME(vector) s[TILE][WIDE], column[WIDE];
        for (int i = 0; i < TILE; i++)
            for (int j = 0; j < WIDE; j++)
                s[i][j] = sums[i * TILE + first + j];
        for (int n = 0; n < BLOCK; n += LANES) {
            for (int j = 0; j < WIDE; j++)
                column[j] = *(const NAME(vector) *)(b + (first + j) * BLOCK + n);
            for (int i = 0; i < TILE; i++) {
                NAME(vector) row = *(const NAME(vector) *)(a + i * BLOCK + n);
                KEEP(row);
                for (int j = 0; j < WIDE; j++)
                    s[i][j] += row * column[j];
            }
        }
        for (int i = 0; i < TILE; i++)
            for (int j = 0; j < WIDE; j++)
                sums[i * TILE + first + j] = s[i][j];
    }
}

/* Add c c' to the tiles of `sums` on the diagonal and below it, lane by lane, where c is a column of
   x, (F, N), moved by `shift` and clipped to norm `bound`, or 0 if its norm is not finite. A block of
   them lies in c, whose rows beyond F are 0. */
static void NAME(add_moment)(float *sums, float *c, const float *x, Py_ssize_t stride,
                             const float *shift, float bound, Py_ssize_t F, Py_ssize_t N)
{
    const float slack = 1.0f + F * FLT_EPSILON; /* a sum of F squares may be too small by less */
    for (Py_ssize_t start = 0; start < N; start += BLOCK) {
        const int n = (int)(N - start < BLOCK ? N - start : BLOCK);
        ALIGNED float weight[BLOCK] = {0};
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
        NAME(vector) *tile = (NAME(vector) *)sums;
        for (Py_ssize_t i = 0; i < F; i += TILE) {
            for (int k = 0; k < TILE; k++) /* of the next block, to the L2 cache */
                for (int ahead = 0; ahead < BLOCK; ahead += LINE)
                    __builtin_prefetch(x + (i + k) * stride + start + BLOCK + ahead, 0, 2);
            for (Py_ssize_t j = 0; j <= i; j += TILE, tile += TILE * TILE)
                NAME(add_products)(tile, c + i * BLOCK, c + j * BLOCK);
        }
    }
}

/* Add up the lanes of the tiles, and write both triangles of S, (F, F). */
static void NAME(write_moment)(float *S, const float *lanes, Py_ssize_t F)
{
    for (Py_ssize_t i = 0; i < F; i += TILE)
        for (Py_ssize_t j = 0; j <= i; j += TILE)
            for (int k = 0; k < TILE * TILE; k++, lanes += LANES) {
                const Py_ssize_t row = i + k / TILE, column = j + k % TILE;
                float total = 0;
                for (int lane = 0; lane < LANES; lane++)
                    total += lanes[lane];
                if (row < F && column < F)
                    S[row * F + column] = S[column * F + row] = total;
            }
}

/* Add p x to the sums of so many rows, x being SIDE vectors. */
INLINE void NAME(add_column)(NAME(vector) sums[ROWS][SIDE], const float *p, const float *x, const int rows)
{
    NAME(vector) column[SIDE];
    for (int i = 0; i < SIDE; i++)
        column[i] = *(const NAME(vector) *)(x + i * LANES);
    for (int j = 0; j < rows; j++) {
        NAME(vector) factor = p[j] - (NAME(vector)){0};
        KEEP(factor);
        for (int i = 0; i < SIDE; i++)
            sums[j][i] += factor * column[i];
    }
}

/* Ask for SIDE vectors, into the L2 cache. */
INLINE void NAME(ask_for)(const float *place)
{
    for (int i = 0; i < SIDE * LANES; i += LINE)
        __builtin_prefetch(place + i, 0, 2);
}

/* Add up the squares of rows of T x from `first` on, for SIDE * LANES columns. They lie in x, (W, STRIP);
   what comes after them is asked for meanwhile. */
INLINE void NAME(add_rows)(const Map *m, Py_ssize_t first, const float *x, const float *next,
                           NAME(vector) *square)
{
    NAME(vector) sums[ROWS][SIDE] = {0};
    const float *p = m->panels + first * m->W + first * ROWS;
    const Py_ssize_t left = m->W - first; /* before `first` T is 0, and above the diagonal */
    x += first * STRIP;
#pragma GCC unroll 13
    for (int k = 0; k < ROWS; k++)
        if (k < left)
            NAME(add_column)(sums, p + k * ROWS, x + k * STRIP, k + 1);
    for (Py_ssize_t k = ROWS; k < left; k++) {
        NAME(add_column)(sums, p + k * ROWS, x + k * STRIP, ROWS);
        if (!first)
            NAME(ask_for)(next + (k - ROWS) * m->stride);
    }
    for (Py_ssize_t k = left > ROWS ? left - ROWS : 0; !first && k < left; k++)
        NAME(ask_for)(next + k * m->stride);
    for (int i = 0; i < SIDE; i++) {
        NAME(vector) total = square[i]; /* in a register */
        for (int j = 0; j < ROWS; j++) /* rows beyond W are 0 */
            total += sums[j][i] * sums[j][i];
        square[i] = total;
    }
}

/* The norm of T x of each column, not too small. A column is reckoned as if it were alone. */
static void NAME(all_norms)(const Map *m)
{
    const float slack = 1.0f + m->W * FLT_EPSILON;
    for (Py_ssize_t strip = 0; strip < m->N; strip += STRIP) {
        const int n = (int)(m->N - strip < STRIP ? m->N - strip : STRIP);
        ALIGNED float square[STRIP] = {0};
        for (Py_ssize_t k = 0; k < m->W; k++)
            copy_some(m->x + k * STRIP, m->from + k * m->stride + strip, n, STRIP);
        for (int i = 0; i < n; i += SIDE * LANES)
            for (Py_ssize_t first = 0; first < m->W; first += ROWS)
                NAME(add_rows)(m, first, m->x + i, m->from + strip + STRIP + i,
                               (NAME(vector) *)(square + i));
        for (int i = 0; i < n; i++)
            m->norm[strip + i] = sqrtf(square[i] * slack + FLT_MIN);
    }
}
