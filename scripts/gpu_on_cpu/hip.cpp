// The HIP runtime, HIPRTC and the BLAS calls that CuPy makes, on the processor. Public API only.
//
// Device memory is the host's, filled with 0xAB before use, so that what was never written shows.
// A kernel's source is compiled with g++ (device.h gives it threads and warps) and kept in
// $GPU_ON_CPU/kernels under the hash of its text. GPU_ON_CPU_DEVICES devices, 1 without it.
#include <dlfcn.h>
#include <unistd.h>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>
#define API extern "C" __attribute__((visibility("default")))

static std::recursive_mutex lock;
static thread_local int device = 0;
static std::map<uintptr_t, std::pair<size_t, int>> blocks;  // device memory: size, device
static int devices() { const char* n = getenv("GPU_ON_CPU_DEVICES"); return n ? atoi(n) : 1; }
static FILE* trace() { static FILE* f = getenv("GPU_ON_CPU_TRACE") ? fopen(getenv("GPU_ON_CPU_TRACE"), "a") : nullptr; return f; }
// Launches, copies to the host, to the device, on it, synchronizations, memsets, products, memory
// that was asked for: what a step costs, on any machine.
static long counts[8];
API long* gpu_on_cpu_counts() { return counts; }

API int hipInit(unsigned) { return 0; }
API int hipGetDeviceCount(int* n) { *n = devices(); return *n ? 0 : 100; }
API int hipGetDevice(int* d) { *d = device; return 0; }
API int hipSetDevice(int d) { if (d < 0 || d >= devices()) return 101; device = d; return 0; }
API int hipDriverGetVersion(int* v) { *v = 70051831; return 0; }
API int hipRuntimeGetVersion(int* v) { *v = 70051831; return 0; }
API int hipDeviceSynchronize() { counts[4]++; return 0; }
API int hipDeviceGetAttribute(int* v, int attr, int) {
  if (trace()) fprintf(trace(), "attribute %d\n", attr), fflush(trace());
  *v = attr == 87 ? 32 : attr == 23 ? 9 : attr == 61 ? 0 : 1024;
  return 0;
}
static int properties(char* p) {
  memset(p, 0, 1416);
  strcpy(p, "processor");
  *(int*)(p + 308) = 32;    // threads of a warp, as in device.h; CuPy divides by it
  *(int*)(p + 320) = 1024;  // threads of a block
  strcpy(p + 1160, "gfx90a");
  return 0;
}
API int hipGetDevicePropertiesR0600(char* p, int) { return properties(p); }
API int hipGetDevicePropertiesR0000(char* p, int) { return properties(p); }
API int hipGetDeviceProperties(char* p, int) { return properties(p); }
API int hipDeviceCanAccessPeer(int* can, int, int) { *can = 0; return 0; }
API int hipMemGetInfo(size_t* f, size_t* t) { *f = *t = size_t(8) << 30; return 0; }
API int hipMalloc(void** p, size_t n) {
  std::lock_guard<std::recursive_mutex> g(lock);
  counts[7]++;
  *p = aligned_alloc(512, (n + 511) / 512 * 512);
  memset(*p, 0xAB, (n + 511) / 512 * 512);  // what was not written shows
  blocks[(uintptr_t)*p] = {n, device};
  return 0;
}
API int hipMallocManaged(void** p, size_t n, unsigned) { return hipMalloc(p, n); }
API int hipFree(void* p) { std::lock_guard<std::recursive_mutex> g(lock); blocks.erase((uintptr_t)p); free(p); return 0; }
API int hipHostMalloc(void** p, size_t n, unsigned) { *p = malloc(n); return 0; }
API int hipHostFree(void* p) { free(p); return 0; }
static int copy(void* d, const void* s, size_t n, int kind) {
  counts[kind == 1 ? 2 : kind == 2 ? 1 : 3]++;
  memcpy(d, s, n);
  return 0;
}
API int hipMemcpy(void* d, const void* s, size_t n, int k) { return copy(d, s, n, k); }
API int hipMemcpyAsync(void* d, const void* s, size_t n, int k, void*) { return copy(d, s, n, k); }
API int hipMemcpyPeer(void* d, int, const void* s, int, size_t n) { return copy(d, s, n, 3); }
API int hipMemcpyPeerAsync(void* d, int, const void* s, int, size_t n, void*) { return copy(d, s, n, 3); }
API int hipMemset(void* d, int v, size_t n) { counts[5]++; memset(d, v, n); return 0; }
API int hipMemsetAsync(void* d, int v, size_t n, void*) { counts[5]++; memset(d, v, n); return 0; }
struct Attributes { int type; int device; void* devicePointer; void* hostPointer; int isManaged; unsigned flags; };
API int hipPointerGetAttributes(Attributes* a, const void* p) {
  std::lock_guard<std::recursive_mutex> g(lock);
  memset(a, 0, sizeof *a);
  auto it = blocks.upper_bound((uintptr_t)p);
  a->type = 3;
  if (it == blocks.begin()) return 0;
  --it;
  if ((uintptr_t)p >= it->first + it->second.first) return 0;
  a->type = 1; a->device = it->second.second; a->devicePointer = (void*)p;
  return 0;
}
static int handle(void** p) { *p = malloc(16); return 0; }
API int hipStreamCreate(void** s) { return handle(s); }
API int hipStreamCreateWithFlags(void** s, unsigned) { return handle(s); }
API int hipStreamDestroy(void* s) { free(s); return 0; }
API int hipStreamSynchronize(void*) { counts[4]++; return 0; }
API int hipStreamQuery(void*) { return 0; }
API int hipStreamWaitEvent(void*, void*, unsigned) { return 0; }
API int hipStreamIsCapturing(void*, int* s) { *s = 0; return 0; }
API int hipEventCreate(void** e) { return handle(e); }
API int hipEventCreateWithFlags(void** e, unsigned) { return handle(e); }
API int hipEventDestroy(void* e) { free(e); return 0; }
API int hipEventRecord(void*, void*) { return 0; }
API int hipEventSynchronize(void*) { return 0; }
API int hipEventQuery(void*) { return 0; }
API int hipEventElapsedTime(float* ms, void*, void*) { *ms = 0; return 0; }
API int hipGetLastError() { return 0; }
API const char* hipGetErrorName(int) { return "hipErrorFake"; }
API const char* hipGetErrorString(int) { return "an error of the stand-in for HIP"; }
API int hipDevicePrimaryCtxRelease(int) { return 0; }

// Modules: the code is "EMU:path", a shared library that exports emu_NAME.
API int hipModuleLoadData(void** m, const void* image) {
  std::string path((const char*)image);
  if (path.rfind("EMU:", 0)) return 209;
  *m = dlopen(path.c_str() + 4, RTLD_NOW | RTLD_LOCAL);
  if (!*m) { fprintf(stderr, "%s\n", dlerror()); return 209; }
  return 0;
}
API int hipModuleUnload(void*) { return 0; }
API int hipModuleGetFunction(void** f, void* m, const char* name) {
  *f = dlsym(m, (std::string("emu_") + name).c_str());
  return *f ? 0 : 500;
}
API int hipModuleGetGlobal(void**, size_t*, void*, const char*) { return 500; }
API int hipFuncGetAttribute(int* v, int, void*) { *v = 1024; return 0; }
API int hipFuncSetAttribute(const void*, int, int) { return 0; }
API int hipModuleLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                              unsigned, void*, void** params, void**) {
  std::lock_guard<std::recursive_mutex> g(lock);
  counts[0]++;
  if (trace()) { Dl_info i; if (dladdr(f, &i) && i.dli_sname) fprintf(trace(), "launch %s %u %u\n", i.dli_sname, gx, bx), fflush(trace()); }
  unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
  ((void (*)(const unsigned*, const unsigned*, void**))f)(grid, block, params);
  return 0;
}

// HIPRTC: g++.
struct Program { std::string source, code, log; std::vector<std::string> names; std::map<std::string, std::string> lowered; };
API int hiprtcVersion(int* a, int* b) { *a = 7; *b = 0; return 0; }
API const char* hiprtcGetErrorString(int) { return "compilation failed"; }
API int hiprtcCreateProgram(Program** p, const char* s, const char*, int, const char**, const char**) { *p = new Program{s}; return 0; }
API int hiprtcDestroyProgram(Program** p) { delete *p; *p = nullptr; return 0; }
API int hiprtcAddNameExpression(Program* p, const char* e) { p->names.push_back(e); return 0; }
API int hiprtcGetLoweredName(Program* p, const char* e, const char** n) { *n = p->lowered[e].c_str(); return 0; }
API int hiprtcGetCodeSize(Program* p, size_t* n) { *n = p->code.size() + 1; return 0; }
API int hiprtcGetCode(Program* p, char* c) { memcpy(c, p->code.c_str(), p->code.size() + 1); return 0; }
API int hiprtcGetProgramLogSize(Program* p, size_t* n) { *n = p->log.size() + 1; return 0; }
API int hiprtcGetProgramLog(Program* p, char* c) { memcpy(c, p->log.c_str(), p->log.size() + 1); return 0; }
API int hiprtcCompileProgram(Program* p, int n, const char** o) {
  std::string home = getenv("GPU_ON_CPU"), flags;
  for (int i = 0; i < n; i++) {
    std::string one = o[i];
    if (!one.rfind("-I", 0) || !one.rfind("-D", 0)) flags += " '" + one + "'";
  }
  std::string text = std::regex_replace(p->source, std::regex("extern\\s+__shared__\\s+(?:__align__\\([^)]*\\)\\s+)?([\\w:<> ]+)\\s+(\\w+)\\s*\\[\\s*\\]"), "static $1 $2[8192]");
  // CuPy's argpartition counts on a warp's threads to take their steps together.
  bool votes = text.find("__any(") != text.npos;
  if (votes) text = std::regex_replace(text, std::regex("bitonic_sort_step\\s*<[^>]*>\\s*\\([^;{]*\\);"), "__syncwarp(); $&  __syncwarp();");
  const char* sync = votes || text.find("__syncthreads") != text.npos || text.find("__shfl") != text.npos ? "true" : "false";
  std::ostringstream all;
  all << "#include \"all.h\"\n" << text << "\n";
  auto export_ = [&](const std::string& name, const std::string& what) {
    all << "extern \"C\" void emu_" << name << "(const unsigned* g, const unsigned* b, void** p) { emu::launch(" << what << ", g, b, p, " << sync << "); }\n";
  };
  std::regex re("extern\\s+\"C\"\\s+__global__\\s+void\\s+(?:__launch_bounds__\\([^)]*\\)\\s*)?(\\w+)\\s*\\(");
  for (std::sregex_iterator i(text.begin(), text.end(), re), e; i != e; ++i) export_((*i)[1], (*i)[1]);
  std::smatch block;  // of several kernels
  if (std::regex_search(text, block, std::regex("extern\\s+\"C\"\\s*\\{"))) {
    std::string rest = block.suffix();
    std::regex within("__global__\\s+void\\s+(\\w+)\\s*\\(");
    for (std::sregex_iterator i(rest.begin(), rest.end(), within), e; i != e; ++i) export_((*i)[1], (*i)[1]);
  }
  int k = 0;
  for (auto& name : p->names) { std::string to = "lowered" + std::to_string(k++); p->lowered[name] = to; export_(to, name); }
  size_t h = std::hash<std::string>()(all.str() + flags);
  std::ostringstream base; base << home << "/kernels/k" << std::hex << h;
  std::string so = base.str() + ".so";
  if (access(so.c_str(), R_OK)) {
    static std::atomic<int> number{0};  // ranks that are threads compile the same text at once
    std::string tmp = base.str() + "." + std::to_string(getpid()) + "." + std::to_string(number++);
    std::ofstream(tmp + ".cpp") << all.str();
    std::string command = "g++ -std=c++17 -O0 -w -fpermissive -fPIC -shared -ffp-contract=off -I" + home + flags + " " + tmp + ".cpp -o " + tmp + ".so > " + tmp + ".log 2>&1";
    int rc = system(command.c_str());
    if (rc) {
      std::ifstream f(tmp + ".log"); std::stringstream s; s << f.rdbuf(); p->log = s.str().substr(0, 4000);
      return 6;
    }
    rename((tmp + ".so").c_str(), so.c_str());
    unlink((tmp + ".log").c_str());
    unlink((tmp + ".cpp").c_str());
  }
  p->code = "EMU:" + so;
  return 0;
}

// BLAS: column-major products.
static void* blas_stream;
API int hipblasCreate(void** h) { return handle(h); }
API int hipblasDestroy(void* h) { free(h); return 0; }
API int hipblasSetStream(void*, void* s) { blas_stream = s; return 0; }
API int hipblasGetStream(void*, void** s) { *s = blas_stream; return 0; }
API int hipblasSetPointerMode(void*, int) { return 0; }
API int hipblasGetPointerMode(void*, int* m) { *m = 0; return 0; }
template <class T, class S> static int gemm(int ta, int tb, int m, int n, int k, S alpha, const T* A, int lda, const T* B, int ldb, S beta, T* C, int ldc) {
  counts[6]++;
  if (lda < (ta == 111 ? m : k) || ldb < (tb == 111 ? k : n) || ldc < m) return 3;  // invalid value, as BLAS says
  for (int j = 0; j < n; j++)
    for (int i = 0; i < m; i++) {
      S s = 0;
      for (int l = 0; l < k; l++)
        s += S(ta == 111 ? A[i + (long)l * lda] : A[l + (long)i * lda]) * S(tb == 111 ? B[l + (long)j * ldb] : B[j + (long)l * ldb]);
      C[i + (long)j * ldc] = T(alpha * s + (beta ? beta * S(C[i + (long)j * ldc]) : S(0)));
    }
  return 0;
}
API int hipblasSgemm(void*, int ta, int tb, int m, int n, int k, const float* a, const float* A, int lda, const float* B, int ldb, const float* b, float* C, int ldc) {
  return gemm(ta, tb, m, n, k, *a, A, lda, B, ldb, *b, C, ldc);
}
API int hipblasDgemm(void*, int ta, int tb, int m, int n, int k, const double* a, const double* A, int lda, const double* B, int ldb, const double* b, double* C, int ldc) {
  return gemm(ta, tb, m, n, k, *a, A, lda, B, ldb, *b, C, ldc);
}
static int typed(int type, int ta, int tb, int m, int n, int k, const void* a, const void* A, int lda, const void* B, int ldb, const void* b, void* C, int ldc) {
  switch (type) {
    case 0: case 151: return gemm(ta, tb, m, n, k, *(const float*)a, (const float*)A, lda, (const float*)B, ldb, *(const float*)b, (float*)C, ldc);
    case 1: case 152: return gemm(ta, tb, m, n, k, *(const double*)a, (const double*)A, lda, (const double*)B, ldb, *(const double*)b, (double*)C, ldc);
    case 2: case 150: return gemm(ta, tb, m, n, k, *(const float*)a, (const _Float16*)A, lda, (const _Float16*)B, ldb, *(const float*)b, (_Float16*)C, ldc);
  }
  return 3;
}
static long width(int type) { return type == 0 || type == 151 ? 4 : type == 1 || type == 152 ? 8 : 2; }
API int hipblasGemmEx(void*, int ta, int tb, int m, int n, int k, const void* a, const void* A, int At, int lda, const void* B, int Bt, int ldb, const void* b, void* C, int Ct, int ldc, int, int) {
  return typed(Ct, ta, tb, m, n, k, a, A, lda, B, ldb, b, C, ldc);
}
API int hipblasGemmStridedBatchedEx(void*, int ta, int tb, int m, int n, int k, const void* a, const void* A, int At, int lda, long long sa, const void* B, int Bt, int ldb, long long sb, const void* b, void* C, int Ct, int ldc, long long sc, int count, int, int) {
  for (long i = 0; i < count; i++)
    if (int rc = typed(Ct, ta, tb, m, n, k, a, (const char*)A + i * sa * width(At), lda, (const char*)B + i * sb * width(Bt), ldb, b, (char*)C + i * sc * width(Ct), ldc)) return rc;
  return 0;
}
API int hipblasSgemmBatched(void*, int ta, int tb, int m, int n, int k, const float* a, const float* const* A, int lda, const float* const* B, int ldb, const float* b, float* const* C, int ldc, int count) {
  for (int i = 0; i < count; i++) if (int rc = gemm(ta, tb, m, n, k, *a, A[i], lda, B[i], ldb, *b, C[i], ldc)) return rc;
  return 0;
}
API int hipblasDgemmBatched(void*, int ta, int tb, int m, int n, int k, const double* a, const double* const* A, int lda, const double* const* B, int ldb, const double* b, double* const* C, int ldc, int count) {
  for (int i = 0; i < count; i++) if (int rc = gemm(ta, tb, m, n, k, *a, A[i], lda, B[i], ldb, *b, C[i], ldc)) return rc;
  return 0;
}
