/* The order in which a linear adds the products of a generated token's row. It depends on the number of
 * columns, the dtypes of weight and x, whether the weight is records and the kind of product, and on nothing
 * else: not on the number of rows, the kernel, the grid or what is done with the result. So a row has the
 * same bits alone and in every batch. (The rows of a prompt are added in the order of gemm_half.cu,
 * gemm_quant.cu, gemm_any.cu or cuBLASLt, which does not depend on the number of rows either.)
 *
 * A row is cut into chunks of 16 bytes of weights, and these into pieces:
 *  - 16-bit weights and x of the same type: tensor cores multiply 16 columns at a time. A piece of 2048
 * columns has 128 such products, in eight chains. Product p of chain c has chunks 16 p + c and 16 p + 8 + c.
 * So one row of weights can be copied as it lies in memory and multiplied with one row of x: its chains are
 * the eight columns of the tensor cores' second operand, and eight neighbouring chunks lie in different
 * banks.
 *  - Integers: a piece has lane_chunks chunks for each of 32 lanes: lane l adds chunks l, l + 32, … one after
 *    the other. Eight neighbouring lanes are added as a tree.
 *  - Integers in records (base/pack_gpu.h) have a piece for each record.
 *  - All others: likewise, but all 32 lanes are added as a tree.
 * The sums of a piece (eight chains, four octets of lanes, or one) are added in their order, then the pieces.
 */
#ifndef FB_BACKEND_CUDA_SUMS_H
#define FB_BACKEND_CUDA_SUMS_H

#include "backend/cuda/device.cuh"
#include "base/pack_gpu.h"
#include "program/ops.h"

#define FB_SUMS_PIECE  2048 /* columns of 16-bit floats, at most */
#define FB_SUMS_CHAINS 8    /* sums of a piece of 16-bit floats */
#define FB_SUMS_OCTETS 4    /* sums of a piece of integers */

typedef struct fb_sums {
    int chunks, lane_chunks, pieces;
    int piece_sums; /* partial sums of a piece */
} fb_sums;

/* Elements of a chunk: of 16 bytes of weights, or 32 in records. */
FB_HOST_DEV int fb_sums_chunk(fb_dtype weight) {
    return weight == FB_F32 ? 4 : (unsigned)weight < FB_FLOAT_COUNT ? 8 : weight == FB_Q8_0 ? 16 : 32;
}

/* Pieces of at most `most` chunks a lane. A warp of matvec.cuh multiplies a piece, so that even 2048 long
 * rows keep all warps of the device busy. The pieces are a power of two where possible: they are of equal
 * length then. */
FB_HOST_DEV fb_sums fb_sums_of_lanes(int chunks, int most) {
    int row_chunks = (chunks + FB_WARP - 1) / FB_WARP; /* of a lane, in a whole row */
    int least = (row_chunks + most - 1) / most, pieces = 1;
    fb_sums sums = {chunks, 0, 0, 1};
    while (pieces < least) pieces *= 2;
    sums.lane_chunks = (row_chunks + pieces - 1) / pieces;
    if ((pieces - 1) * sums.lane_chunks >= row_chunks) /* the last piece would be empty */
        sums.lane_chunks = (row_chunks + least - 1) / least;
    sums.pieces = (row_chunks + sums.lane_chunks - 1) / sums.lane_chunks;
    return sums;
}

/* A piece is a record. */
FB_HOST_DEV fb_sums fb_sums_of_records(int64_t cols) {
    const int chunks = (int)(cols / 32), piece = FB_RECORD_COLUMNS / 32, most = piece / FB_WARP;
    const int row_chunks = (chunks + FB_WARP - 1) / FB_WARP;
    fb_sums sums = {chunks, row_chunks < most ? row_chunks : most, (chunks + piece - 1) / piece, 1};
    return sums;
}

/* Chunks of a lane in a piece of integers, at most: gemm_few_quant.cu holds a piece of x in shared memory. */
FB_HOST_DEV fb_sums fb_sums_of_integers(int64_t cols, fb_dtype weight) {
    fb_sums sums = fb_sums_of_lanes((int)(cols / fb_sums_chunk(weight)), weight == FB_Q4_0 ? 3 : 4);
    sums.piece_sums = FB_SUMS_OCTETS;
    return sums;
}

/* Of 16-bit floats. Where rows of 2560 and 10240 columns meet in one model, all pieces then have 1280
 * columns. With pieces of 2048 beside those of 1280, the persistent kernel had two stages of a pipeline
 * instead of four (a stage has room for the longest piece), and a step of Pythia-2.8B took 1.74 instead
 * of 1.61 ms. */
FB_HOST_DEV fb_sums fb_sums_of_halves(int64_t cols) {
    fb_sums sums = fb_sums_of_lanes((int)((cols + 7) / 8), FB_SUMS_PIECE / 8 / FB_WARP);
    sums.piece_sums = FB_SUMS_CHAINS;
    return sums;
}

static inline fb_sums fb_sums_of(const fb_weight *w, fb_dtype x, fb_dot dot) {
    const int64_t cols = w->cols;
    const fb_dtype weight = w->dtype;
    int chunk = fb_sums_chunk(weight), chunks = (int)((cols + chunk - 1) / chunk);
    if (fb_weight_is_records(w)) {
        fb_sums sums = fb_sums_of_records(cols);
        if (dot != FB_DOT_FLOAT) sums.piece_sums = FB_SUMS_OCTETS;
        return sums;
    }
    if (dot != FB_DOT_FLOAT) return fb_sums_of_integers(cols, weight);
    if ((weight == FB_F16 || weight == FB_BF16) && x == weight) return fb_sums_of_halves(cols);
    return fb_sums_of_lanes(chunks, weight == FB_Q4_0 ? 3 : 8);
}

#endif
