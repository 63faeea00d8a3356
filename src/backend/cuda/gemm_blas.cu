/* Products of 16-bit floats by cuBLASLt, which is opened at run time if it is installed. What is fused into a
 * linear is a kernel of its own after the product.
 *
 * The order in which cuBLASLt sums is unknown. So a plain linear and one with something fused in must be the
 * very same product: the same shape, types and strides, the same algorithm, and the bias added in the same
 * place. Hence the result's type depends on the linear alone, rows have no gaps, and the algorithm is the
 * first that the library's heuristic names for the shape. */
#include "backend/cuda/chunk.cuh"
#include "backend/cuda/gemm.cuh"

#ifdef FB_EMULATED
#define WORKSPACE 256
#else
#define WORKSPACE (32 << 20) /* of cuBLASLt */
#endif
#define THREADS 256

/* The algorithm that the heuristic names depends on the number of rows, and so does the order of sums. With
 * cx->invariant it is asked for so many rows, whatever their number is. */
#define INVARIANT_ROWS 256

struct blas_product {
    const void *x, *w;
    const void *bias; /* of the result's type, or NULL */
    void *out;
    int64_t rows, n, k;
    fb_dtype type, result; /* of x and w; of out and bias */
    bool invariant;
};

/* ---- the library ---- */

#ifdef FB_EMULATED

void *fb_cuda_blas_create(void) { return NULL; }
void fb_cuda_blas_destroy(void *) {}

static int blas_multiply(void *, const blas_product *p, void *, void *) {
    for (int64_t row = 0; row < p->rows; row++)
        for (int64_t n = 0; n < p->n; n++) {
            float sum = 0;
            for (int64_t k = p->k; k-- > 0;) /* backwards: an order that no other kernel has */
                sum =
                    fmaf(gemm_get(p->type, p->x, row * p->k + k), gemm_get(p->type, p->w, n * p->k + k), sum);
            if (p->bias) sum += gemm_get(p->result, p->bias, n);
            gemm_put_2(p->result, p->out, row * p->n + n, false, false, make_float2(sum, 0));
        }
    return 0;
}

#else

#include <cublasLt.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#define FUNCTIONS(X)                                                                                         \
    X(Create)                                                                                                \
    X(Destroy)                                                                                               \
    X(MatmulDescCreate)                                                                                      \
    X(MatmulDescDestroy)                                                                                     \
    X(MatmulDescSetAttribute)                                                                                \
    X(MatrixLayoutCreate)                                                                                    \
    X(MatrixLayoutDestroy)                                                                                   \
    X(MatmulPreferenceCreate)                                                                                \
    X(MatmulPreferenceDestroy)                                                                               \
    X(MatmulPreferenceSetAttribute)                                                                          \
    X(MatmulAlgoGetHeuristic)                                                                                \
    X(Matmul)

/* How to multiply one shape. Prompts have many lengths: beyond PLANS plans the oldest is replaced. If it is
 * made again, it is the same. */
#define PLANS   128
struct blas_plan {
    int64_t rows, n, k;
    fb_dtype type, result;
    bool biased, served, invariant;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w, x, out;
    cublasLtMatmulAlgo_t algorithm;
};

struct blas {
    void *library;
    cublasLtHandle_t handle;
    pthread_mutex_t lock;
    blas_plan plans[PLANS];
    int64_t made; /* plans so far, replaced ones included */
#define X(name) decltype(&cublasLt##name) name;
    FUNCTIONS(X)
#undef X
};

static void destroy_layouts(blas *b, blas_plan *plan) {
    if (plan->w) b->MatrixLayoutDestroy(plan->w);
    if (plan->x) b->MatrixLayoutDestroy(plan->x);
    if (plan->out) b->MatrixLayoutDestroy(plan->out);
    plan->w = plan->x = plan->out = NULL;
}
static void destroy_plan(blas *b, blas_plan *plan) {
    if (plan->desc) b->MatmulDescDestroy(plan->desc);
    destroy_layouts(b, plan);
}

void fb_cuda_blas_destroy(void *handle) {
    blas *b = (blas *)handle;
    if (!b) return;
    for (int i = 0; i < PLANS && i < b->made; i++) destroy_plan(b, &b->plans[i]);
    if (b->handle) b->Destroy(b->handle);
    pthread_mutex_destroy(&b->lock);
    if (b->library) dlclose(b->library);
    free(b);
}

void *fb_cuda_blas_create(void) {
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
    blas *b = (blas *)calloc(1, sizeof *b);
    if (!b) return NULL;
    pthread_mutex_init(&b->lock, NULL);
    for (int i = 0; i < 3 && !b->library; i++) b->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    bool whole = b->library != NULL;
#define X(name) whole = whole && (b->name = (decltype(b->name))dlsym(b->library, "cublasLt" #name));
    FUNCTIONS(X)
#undef X
    if (whole && b->Create(&b->handle) == CUBLAS_STATUS_SUCCESS) return b;
    fb_cuda_blas_destroy(b);
    return NULL;
}

static cudaDataType_t type_of(fb_dtype dtype) {
    return dtype == FB_F32 ? CUDA_R_32F : dtype == FB_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

/* cuBLAS is column-major: out^T [n, rows] = w [n, k] times x^T [k, rows]. Read column-major, w is [k, n],
 * hence TRANSA. */
static bool describe_matrices(blas *b, blas_plan *plan, int64_t count) {
    cudaDataType_t type = type_of(plan->type), result = type_of(plan->result);
    uint64_t n = (uint64_t)plan->n, k = (uint64_t)plan->k, rows = (uint64_t)count;
    return !b->MatrixLayoutCreate(&plan->w, type, k, n, (int64_t)k) &&
           !b->MatrixLayoutCreate(&plan->x, type, k, rows, (int64_t)k) &&
           !b->MatrixLayoutCreate(&plan->out, result, n, rows, (int64_t)n);
}
static bool describe(blas *b, blas_plan *plan) {
    cublasOperation_t transposed = CUBLAS_OP_T;
    cudaDataType_t result = type_of(plan->result);
    cublasLtEpilogue_t epilogue = plan->biased ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    bool good =
        !b->MatmulDescCreate(&plan->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) &&
        !b->MatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed) &&
        !b->MatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (good && plan->biased)
        good = !b->MatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &result,
                                          sizeof result);
    return good;
}

/* The first algorithm that the library's heuristic names. Parts of a split sum are added in float32. */
static bool choose(blas *b, blas_plan *plan) {
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    size_t workspace = WORKSPACE;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, align = 16;
    bool good = !b->MatmulPreferenceCreate(&preference);
#define PREFER(name, value)                                                                                  \
    good = good &&                                                                                           \
           !b->MatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_##name, &value, sizeof value)
    PREFER(MAX_WORKSPACE_BYTES, workspace);
    PREFER(REDUCTION_SCHEME_MASK, schemes);
    PREFER(MIN_ALIGNMENT_A_BYTES, align);
    PREFER(MIN_ALIGNMENT_B_BYTES, align);
    PREFER(MIN_ALIGNMENT_C_BYTES, align);
    PREFER(MIN_ALIGNMENT_D_BYTES, align);
#undef PREFER
    good = good &&
           !b->MatmulAlgoGetHeuristic(b->handle, plan->desc, plan->w, plan->x, plan->out, plan->out,
                                      preference, 1, &found, &count) &&
           count > 0 && found.state == CUBLAS_STATUS_SUCCESS;
    if (good) plan->algorithm = found.algo;
    if (preference) b->MatmulPreferenceDestroy(preference);
    return good;
}

static blas_plan *plan_for(blas *b, const blas_product *p) {
    for (int i = 0; i < PLANS && i < b->made; i++) {
        blas_plan *plan = &b->plans[i];
        if (plan->rows == p->rows && plan->n == p->n && plan->k == p->k && plan->type == p->type &&
            plan->result == p->result && plan->biased == (p->bias != NULL) && plan->invariant == p->invariant)
            return plan;
    }
    blas_plan *plan = &b->plans[b->made % PLANS];
    if (b->made >= PLANS) destroy_plan(b, plan);
    b->made++;
    *plan = blas_plan();
    plan->rows = p->rows, plan->n = p->n, plan->k = p->k;
    plan->type = p->type, plan->result = p->result;
    plan->biased = p->bias != NULL;
    plan->invariant = p->invariant;
    plan->served = describe(b, plan) &&
                   describe_matrices(b, plan, plan->invariant ? INVARIANT_ROWS : plan->rows) &&
                   choose(b, plan);
    if (plan->invariant) {
        destroy_layouts(b, plan);
        plan->served = plan->served && describe_matrices(b, plan, plan->rows);
    }
    return plan;
}

static int blas_multiply(void *handle, const blas_product *p, void *workspace, void *stream) {
    blas *b = (blas *)handle;
    float one = 1, zero = 0;
    cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
    pthread_mutex_lock(&b->lock);
    blas_plan *plan = plan_for(b, p);
    bool ready =
        plan->served && (!p->bias || !b->MatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                                &p->bias, sizeof p->bias));
    if (ready)
        status =
            b->Matmul(b->handle, plan->desc, &one, p->w, plan->w, p->x, plan->x, &zero, p->out, plan->out,
                      p->out, plan->out, &plan->algorithm, workspace, WORKSPACE, (cudaStream_t)stream);
    pthread_mutex_unlock(&b->lock);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return GEMM_UNSERVED;
    return status == CUBLAS_STATUS_SUCCESS ? cudaSuccess : cudaErrorUnknown;
}

#endif

/* ---- what follows a product ---- */

struct finish_job {
    const void *product[2]; /* of parts job.first and job.first + 1 */
    fb_dtype dtype[2];
    bool biased[2]; /* the product includes the bias */
    int32_t unit;
};

/* Eight elements from i on, a multiple of 8. `whole`: rows lie at multiples of 16 bytes. */
static FB_DEVICE void get_8(fb_dtype dtype, const void *p, int64_t i, bool whole, float *v) {
    if (whole)
        FB_FOR_TYPE(dtype, T, fb_load_8((const T *)p + i, v));
    else
        for (int j = 0; j < 8; j++) v[j] = gemm_get(dtype, p, i + j);
}
static FB_DEVICE void put_8(fb_dtype dtype, void *p, int64_t i, bool whole, const float *v) {
    if (whole)
        FB_FOR_TYPE(dtype, T, fb_store_8((T *)p + i, v));
    else
        for (int j = 0; j < 8; j++) gemm_put_2(dtype, p, i + j, false, false, make_float2(v[j], 0));
}
static FB_HOST_DEV bool whole_rows(const void *p, int64_t row) { return fb_aligned(p, 16) && row % 8 == 0; }

__global__ void __launch_bounds__(THREADS)
    gemm_finish_kernel(GEMM_PARAMETER gemm_job job, GEMM_PARAMETER finish_job finish) {
    fb_let_next_start();
    fb_wait_for_previous();
    const gemm_unit &unit = job.unit[finish.unit];
    int64_t n = job.segment[unit.segment].n, eights = n / 8, count = job.rows * eights;
    for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x; at < count;
         at += (int64_t)gridDim.x * THREADS) {
        int64_t row = at / eights, c = at % eights * 8, i = row * n + c;
        float v[8], first[8] = {0}, r[8] = {0};
        for (int p = 0; p < job.count; p++) {
            const gemm_segment &s = job.segment[unit.segment + job.first + p];
            bool last = job.first + p + 1 == job.parts;
            float bias[8] = {0};
            get_8(finish.dtype[p], finish.product[p], i, true, v);
            if (s.bias && !finish.biased[p]) {
                get_8(s.bias_dtype, s.bias, c, whole_rows(s.bias, 8), bias);
                for (int j = 0; j < 8; j++) v[j] += bias[j];
            }
            for (int j = 0; j < 8; j++) v[j] = gemm_activated(job.dtype, s.act, v[j]);
            if (!last && job.count == 1) put_8(job.dtype, job.kept, i, true, v);
            if (!last)
                for (int j = 0; j < 8; j++) first[j] = v[j];
        }
        if (job.first + job.count < job.parts) continue;
        if (job.parts == 2 && job.count == 1) get_8(job.dtype, job.kept, i, true, first);
        if (job.combine == FB_COMBINE_ADD)
            get_8(job.dtype, job.residual, row * job.residual_row + c,
                  whole_rows(job.residual, job.residual_row), r);
        for (int j = 0; j < 8; j++) v[j] = gemm_combined(job, v[j], first[j], r[j]);
        put_8(job.dtype, unit.out, row * unit.out_row + c, whole_rows(unit.out, unit.out_row), v);
    }
}

static int64_t product_bytes(int64_t elements, fb_dtype dtype) {
    return (elements * fb_dtype_size(dtype) + 255) / 256 * 256;
}

int64_t gemm_blas_workspace_bytes(int products, int64_t elements, fb_dtype dtype) {
    return WORKSPACE + products * product_bytes(elements, dtype);
}

static int unit_products(const gemm_job *job, int u, const fb_cuda_context *cx, uint8_t *workspace) {
    const gemm_unit *unit = &job->unit[u];
    finish_job finish = {};
    bool needed = job->combine != FB_COMBINE_NONE;
    uint8_t *next = workspace + WORKSPACE;
    finish.unit = u;
    for (int p = 0; p < job->count; p++) {
        const gemm_segment *s = &job->segment[unit->segment + job->first + p];
        bool biased = s->bias && gemm_blas_biased(s->bias, s->bias_dtype, job->dtype);
        fb_dtype result = s->bias && !biased ? FB_F32 : job->dtype;
        bool straight = job->combine == FB_COMBINE_NONE && result == job->dtype && unit->out_row == s->n &&
                        fb_aligned(unit->out, 16);
        void *to = straight ? unit->out : next;
        if (!straight) next += product_bytes(job->rows * s->n, result);
        blas_product product = {
            s->x,   s->w,         biased ? s->bias : NULL, to, job->rows, s->n, s->k, s->w_dtype,
            result, cx->invariant};
        int code = blas_multiply(cx->blas, &product, workspace, cx->stream);
        if (code) return code;
        finish.product[p] = to;
        finish.dtype[p] = result;
        finish.biased[p] = biased;
        needed = needed || !straight || s->act != FB_OP_COUNT || (s->bias && !biased);
    }
    if (!needed) return 0;
    int64_t blocks = (job->rows * (job->segment[unit->segment].n / 8) + THREADS - 1) / THREADS;
    return FB_LAUNCH(cx, dim3((unsigned)(blocks < 65536 ? blocks : 65536)), dim3(THREADS), 0,
                     gemm_finish_kernel, *job, finish);
}

int gemm_blas(const gemm_job *job, const fb_cuda_context *cx, uint8_t *workspace) {
    for (int u = 0; u < job->units; u++) {
        int code = unit_products(job, u, cx, workspace);
        if (code) return code;
    }
    return 0;
}
