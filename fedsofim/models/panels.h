/* Products over blocks of records, for one kind of CPU: moments.c includes this once a kind, with

       NAME(f)   the name of a function for it,
       LANES     how many numbers it works on at once,
       SIDE      a tile of ROWS sums by so many vectors stays in its registers.

   BLAS would copy both factors of so small a product, and records would go through memory once more
   for their norms. */

typedef float NAME(vector) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Add the products of TILE rows with TILE rows to their sums, over a block. */
INLINE void NAME(add_products)(NAME(vector) *restrict sums, const float *restrict a,
                               const float *restrict b)
{
    NAME(vector) s[TILE * TILE];
    for (int k = 0; k < TILE * TILE; k++)
        s[k] = sums[k];
    for (int n = 0; n < BLOCK; n += LANES)
        for (int i = 0; i < TILE; i++)
            for (int j = 0; j < TILE; j++)
                s[i * TILE + j] += *(const NAME(vector) *)(a + i * BLOCK + n) *
                                   *(const NAME(vector) *)(b + j * BLOCK + n);
    for (int k = 0; k < TILE * TILE; k++)
        sums[k] = s[k];
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
            for (int ahead = 0; ahead < TILE * BLOCK; ahead += LINE) /* of the next block */
                __builtin_prefetch(x + (i + ahead / BLOCK) * stride + start + BLOCK + ahead % BLOCK);
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

/* Write the rows of P x from `first` on, of n columns, and add up their squares. The columns lie in
   x, (W, STRIP); one line of each row that comes later is asked for meanwhile, at `ahead`. */
INLINE void NAME(map_rows)(const Map *m, Py_ssize_t first, Py_ssize_t start, Py_ssize_t ahead, int n,
                           const float *x, NAME(vector) *square)
{
    NAME(vector) sums[ROWS][SIDE] = {0};
    ALIGNED float rows[ROWS][SIDE * LANES];
    const float *p = m->panels + first * m->W, *next = m->from + ahead;
    float *room = m->z + ahead;
    for (Py_ssize_t k = 0; k < m->W; k++, p += ROWS, x += STRIP) {
        __builtin_prefetch(next, 0, 2); /* to the L2 cache */
        __builtin_prefetch(room, 1, 2);
        next += m->from_stride, room += m->z_stride;
        for (int j = 0; j < ROWS; j++)
            for (int i = 0; i < SIDE; i++)
                sums[j][i] += p[j] * *(const NAME(vector) *)(x + i * LANES);
    }
    for (int j = 0; j < ROWS; j++)
        for (int i = 0; i < SIDE; i++) {
            *(NAME(vector) *)(rows[j] + i * LANES) = sums[j][i];
            square[i] += sums[j][i] * sums[j][i]; /* rows beyond W are 0 */
        }
    for (int j = 0; j < ROWS && first + j < m->W; j++)
        copy_some(m->z + (first + j) * m->z_stride + start, rows[j], n, SIDE * LANES);
}

/* z = P x, and the norm of each column, not too small. A column is reckoned as if it were alone. */
static void NAME(map_all)(const Map *m)
{
    const float slack = 1.0f + m->W * FLT_EPSILON;
    for (Py_ssize_t strip = 0; strip < m->N; strip += STRIP) {
        const int n = (int)(m->N - strip < STRIP ? m->N - strip : STRIP);
        ALIGNED float square[STRIP] = {0};
        for (Py_ssize_t k = 0; k < m->W; k++)
            copy_some(m->x + k * STRIP, m->from + k * m->from_stride + strip, n, STRIP);
        for (int i = 0; i < n; i += SIDE * LANES)
            for (Py_ssize_t first = 0; first < m->W; first += ROWS) {
                const Py_ssize_t ahead = strip + STRIP + first / ROWS % (2 * STRIP / LINE) * LINE;
                NAME(map_rows)(m, first, strip + i, ahead, n - i, m->x + i,
                               (NAME(vector) *)(square + i));
            }
        for (int i = 0; i < n; i++)
            m->norm[strip + i] = sqrtf(square[i] * slack + FLT_MIN);
    }
}
