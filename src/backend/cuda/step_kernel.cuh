/* The layers of a decode step in one kernel: a block a multiprocessor goes through the list of ops
 * (step_list.h). Blocks never meet: each value that goes from one to others says itself when it is there
 * (step_mail.cuh).
 *
 * What a launch costs besides its reads is paid once. Weights come on across ops, asked for by warps that do
 * nothing else (step_weights.cuh): the memory is idle only when all slots of the rings are full. Everything
 * else is done by the functions of the single kernels, so that the bits are theirs.
 *
 * Between two products lies what cannot be overlapped, and there every instruction counts that all warps
 * execute: four cycles each. */
#ifndef FB_BACKEND_CUDA_STEP_KERNEL_CUH
#define FB_BACKEND_CUDA_STEP_KERNEL_CUH

#include "backend/cuda/matvec.cuh"
#include "backend/cuda/step_attention.cuh"
#include "backend/cuda/step_weights.cuh"

/* The thread that brings ops, and from which on some ask for what is needed later: of warps that have neither
 * norms nor outputs to look for, as a rule. */
#define ST_KEEPER (10 * FB_WARP)

struct st_window {
    const st_op *ops; /* in shared memory */
    int now, count;
};
FB_DEVICE const st_op &st_at(const st_window &w, int op) { return w.ops[op % ST_WINDOW]; }

/* Norms and biases of an op two ahead are asked into the second-level cache: behind the weights that the
 * rings ask for, they would take 3 us. Blocks share the norms. */
FB_DEVICE void st_prefetch(const void *p, int64_t bytes, int first, int step) {
#ifndef FB_EMULATED
    for (int64_t at = (int64_t)first * 128; at < bytes; at += (int64_t)step * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const uint8_t *)p + at));
#else
    (void)p, (void)bytes, (void)first, (void)step;
#endif
}
FB_DEVICE int st_size(fb_dtype type) { return type == FB_F32 ? 4 : 2; }
template <int R> FB_DEVICE void st_prefetch_op(const mv_plan &plan) {
    int thread = (int)threadIdx.x - ST_KEEPER, s = thread / FB_WARP, lane = thread % FB_WARP;
    if (thread < 0 || s >= plan.segments) return;
    const mv_segment &seg = plan.seg[s];
    int line = (int)blockIdx.x + lane * (int)gridDim.x;
    if (seg.norm != FB_OP_COUNT) {
        st_prefetch(seg.norm_w, (int64_t)seg.cols * st_size(seg.norm_w_type), line, FB_WARP * (int)gridDim.x);
        if (seg.norm_b)
            st_prefetch(seg.norm_b, (int64_t)seg.cols * st_size(seg.norm_b_type), line,
                        FB_WARP * (int)gridDim.x);
    }
    if (seg.bias) {
        mv_share share = mv_share_of<R>(seg);
        int size = st_size(seg.bias_type);
        st_prefetch((const uint8_t *)seg.bias + share.first * size, (int64_t)(share.end - share.first) * size,
                    lane, FB_WARP);
    }
}

/* ---- ops -------------------------------------------------------------------------------------------------
 */

/* mv_stage_inputs for one row, in less code: what a segment is like is looked up quickly here. `next`: what
 * the first segment's norm needs; that of each other one is asked for while the one before is staged. */
template <class W, class X, class T>
FB_DEVICE void st_stage(const mv_plan &plan, uint8_t *shared, float *room, mv_norm_8 next) {
    fb_row_stats stats = {0, 0};
#pragma unroll 1
    for (int s = 0; s < plan.segments; s++) {
        mv_norm_8 norm = next;
        next = {};
        if (s + 1 < plan.segments) mv_ask_first_norm(plan.seg[s + 1], &next);
        mv_stage_segment<true, T, W, X, 1>(plan, plan.seg[s], s == 0, shared, room, &stats, norm);
    }
}

/* The rows that the op reads; what is staged as it is comes to its place. The last segments' are there first.
 */
FB_DEVICE void st_take_rows(const mv_plan &plan, const st_mail &mail, const st_post_box &box,
                            uint8_t *shared) {
#pragma unroll 1
    for (int s = plan.segments - 1; s >= 0; s--) {
        const mv_segment &seg = plan.seg[s];
        if (!seg.copies && (seg.raw_at < 0 || seg.same_raw)) continue;
        uint8_t *to = shared + (seg.copies ? seg.x_at : seg.raw_at);
        if (mail.in[s] < 0)
            st_take_plain(seg.x, seg.cols, to);
        else
            st_take(box.mails + mail.in[s], seg.cols, box.tag, to);
    }
}

FB_DEVICE void st_look_residual(const mv_plan &plan, const st_mail &mail, const st_post_box &box,
                                const mv_output &output, mv_rest *rest) {
    if (mail.residual < 0)
        mv_get_residual(plan, output, 0, rest);
    else
        rest->residual = st_look(box.mails + mail.residual + output.row);
}

/* The last threads have the first outputs: while x is waited for, the first ones ask for norms. */
FB_DEVICE int st_first_output() { return MV_THREADS - 1 - (int)threadIdx.x; }

/* mv_finish for one row: outputs go to the other blocks. `rest`: of the thread's first output, `mine`. */
template <int R, class T>
FB_DEVICE void st_finish(const mv_plan &plan, const st_mail &mail, const st_post_box &box,
                         const float *partial, bool once, mv_output mine, mv_rest rest) {
    const fb_dtype type = mv_dtype<T>::value;
#pragma unroll 1
    for (int i = st_first_output(); mine.s >= 0; mine = mv_output_of<R>(plan, i += MV_THREADS)) {
        const mv_segment &seg = plan.seg[mine.s];
        if (i >= MV_THREADS) {
            mv_get_biases(plan, mine, &rest);
            st_look_residual(plan, mail, box, mine, &rest);
        }
        if (mail.residual >= 0)
            rest.residual = st_await(box.mails + mail.residual + mine.row, rest.residual, box.tag);
        const float *from = partial + mine.at;
        T x = fb_narrow<T>(mv_value(plan, type, mine, 0, from, rest, mv_total(from, seg.pieces)));
        st_post(box.mails + mail.out[mine.s] + mine.row, box.tag | st_bits(x));
        if (mail.plain[mine.s]) ((T *)seg.out)[mine.row] = x;
        if (once) return;
    }
}

template <class W, class X, class T>
FB_DEVICE void st_matvec(const st_op &op, const mv_plan *later, const st_post_box &box, const st_rooms &rooms,
                         uint8_t *shared, st_ring &ring) {
    const int R = mv_rows<W, 1>::value;
    const mv_plan &plan = op.matvec;
    const st_mail &mail = op.mail;
    /* Until x is there, everything else that can be done. (To look for it first is no faster: too early.) */
    if (later) st_prefetch_op<R>(*later);
    mv_norm_8 norm = {};
    mv_ask_first_norm(plan.seg[0], &norm);
    mv_output mine = mv_output_of<R>(plan, st_first_output());
    mv_rest rest = {{0, 0}, 0};
    if (mine.s >= 0) mv_get_biases(plan, mine, &rest);
    int pieces = st_pieces(op, (int)threadIdx.x / FB_WARP);
    if (mine.s >= 0) st_look_residual(plan, mail, box, mine, &rest);
    st_take_rows(plan, mail, box, shared);
    mv_sync();
    float *partial = (float *)(shared + plan.partial_at);
    st_stage<W, X, T>(plan, shared, partial, norm);
    mv_sync();
    /* What the loop needs, in registers. */
    mv_plan here;
    here.slot_row = plan.slot_row;
    here.slot_bytes = rooms.slot_bytes;
    here.scale_at = plan.scale_at;
    here.scale_row = plan.scale_row;
#pragma unroll 1
    for (; pieces > 0; pieces--) {
        mv_barrier_wait(ring.of.barriers + ring.of.slot, ring.of.phase);
        const int4 what = *(const int4 *)&ring.of.heads[ring.of.slot].x_at;
        mv_multiply<W, X, 1, R, true>(here, ring.of, what, shared, partial);
        /* Each lane for itself: as fast as one for all after a __syncwarp, which racecheck does not follow.
         */
        mv_barrier_arrive(ring.free + ring.of.slot);
        if (++ring.of.slot == rooms.depth) {
            ring.of.slot = 0;
            ring.of.phase ^= 1;
        }
    }
    mv_sync();
    st_finish<R, T>(plan, mail, box, partial, op.once, mine, rest);
}

template <class T>
FB_DEVICE void st_attention_op(const st_attention &op, const st_mail &mail, const st_post_box &box,
                               const st_course &course, uint8_t *shared) {
    st_attention_room &room = *(st_attention_room *)shared;
    const int past = course.past;
    if (course.parts <= (int)blockIdx.x) return;
    st_part part = course.part;
    st_tile tile;
    st_load_tile(op.a, course, part.kv_head, part.begin, min(part.end, past), tile);
#pragma unroll 1
    for (int number = (int)blockIdx.x; number < course.parts; number += (int)gridDim.x) {
        if (number != (int)blockIdx.x) {
            mv_sync();
            part = st_part_of(op, number, past);
            st_load_tile(op.a, course, part.kv_head, part.begin, min(part.end, past), tile);
        }
        st_attend<T>(op, mail, box, course, part, tile, room);
    }
}

/* T: what activations and the cache are. Nothing of it overlaps the kernels before and after: no
 * fb_wait_for_previous. */
template <class W, class X, class T>
__global__ void __launch_bounds__(ST_THREADS, 1) st_kernel(const __grid_constant__ st_rooms rooms) {
#if defined FB_EMULATED || (defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900)
    const int R = mv_rows<W, 1>::value;
    FB_SHARED(uint8_t, shared);
    st_window w = {(const st_op *)(shared + rooms.window_at), 0, rooms.count};
    const st_barriers barriers = st_barriers_of(rooms, shared);
    st_make_barriers(rooms, shared, barriers);
    __syncthreads();
    if (threadIdx.x >= MV_THREADS) {
        st_bring<W, R>(rooms, shared, barriers);
        return;
    }
    if (threadIdx.x == ST_KEEPER)
        for (int op = 0; op < ST_WINDOW; op++) st_fetch_op(rooms, shared, barriers, op);
    st_ring ring = st_ring_of(rooms, shared, (int)threadIdx.x / FB_WARP);
    const st_post_box box = {rooms.mails, st_tag_of(rooms)};
    st_course *course = (st_course *)(shared + rooms.course_at);
    bool attended = false;
    int there = 0;
#pragma unroll 1
    for (; w.now < w.count; w.now++) {
        for (; there < min(w.now + 3, w.count); there++) st_await_op(barriers, there);
        const st_op &op = st_at(w, w.now), &next = st_at(w, w.now + 2);
        const mv_plan *later = w.now + 2 < w.count && next.kind == ST_MATVEC ? &next.matvec : NULL;
        if (op.kind == ST_MATVEC) {
            st_matvec<W, X, T>(op, later, box, rooms, shared, ring);
        } else {
            if (later) st_prefetch_op<R>(*later);
            if (!attended) {
                if (threadIdx.x == 0) *course = st_course_of(op.attention);
                mv_sync();
                attended = true;
            }
            st_attention_op<T>(op.attention, op.mail, box, *course, shared);
        }
        mv_sync(); /* what was in shared memory has been read */
        if (threadIdx.x == ST_KEEPER) st_fetch_op(rooms, shared, barriers, w.now + ST_WINDOW);
    }
    /* The last block to come here: all have seen which step it is. */
    if (threadIdx.x == 0 && atomicAdd(rooms.ended, 1u) == gridDim.x - 1) {
        *rooms.ended = 0;
        (*rooms.steps)++;
    }
#endif
}

template <class W, class X, class T>
static int st_launch(const fb_cuda_list *list, const st_rooms *rooms, const fb_cuda_context *cx) {
    if (!rooms)
        return FB_FITS_TOGETHER(cx, ST_THREADS, (size_t)list->shared, (st_kernel<W, X, T>))
                   ? 0
                   : FB_CUDA_NOT_LISTED;
    return FB_LAUNCH_TOGETHER(cx, dim3((unsigned)cx->limits->sms), dim3(ST_THREADS), (size_t)list->shared,
                              (st_kernel<W, X, T>), *rooms);
}

#endif
