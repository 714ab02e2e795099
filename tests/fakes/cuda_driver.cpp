// A library with the functions of NVIDIA's driver that `backends/cuda/driver.py` needs, for machines
// without a GPU. It is stricter than a GPU: everything that is asynchronous is done as late as the
// rules allow, memory is filled with 0xA5 before and after its life, a copy must lie in one
// allocation, and a thread has no context before it asks for one. A launch calls back into Python,
// where the kernel's twin computes.
#include <cuda.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

using Work = std::function<CUresult()>;
using Launcher = int (*)(const char *symbol, const unsigned *grid, void **params, int count);

struct Stream {
    int device = 0;
    unsigned flags = 0;
    std::deque<std::pair<unsigned long, Work>> queue;
    struct CUgraph_st *graph = nullptr;  // while it is captured
    bool is_invalid = false;
    CUstreamCaptureMode mode{};
    std::thread::id thread;
};
struct CUgraph_st { std::vector<Work> nodes; };
struct CUgraphExec_st { std::vector<Work> nodes; };
struct CUevent_st { Stream *stream = nullptr; unsigned long number = 0; };
struct CUctx_st { int device; };
struct CUlib_st { std::vector<struct CUkern_st *> kernels; };
struct CUkern_st {
    std::string symbol;
    std::vector<int> sizes;
    std::map<int, int> shared;  // the most dynamic shared memory, by device
};
struct Piece { size_t size; bool is_host; int device; };

static constexpr int kDevices = 2;
static constexpr unsigned char kPoison = 0xA5;
static std::mutex state;              // held for a moment, and never by who waits for Python
static std::recursive_mutex working;  // held by who does what is queued
static CUctx_st contexts[kDevices] = {{0}, {1}};
static thread_local CUcontext current = nullptr;
static thread_local std::vector<CUcontext> pushed;
static thread_local Stream *captured_here = nullptr;
static std::map<uintptr_t, Piece> pieces;
static std::set<Stream *> streams;
static std::map<std::string, long> counts;
static std::map<std::string, CUresult> failures;
static CUresult sticky = CUDA_SUCCESS;
static std::string reason;
static unsigned long numbers = 0;
static size_t held_bytes = 0, total_bytes = size_t(1) << 34;
static Launcher launcher = nullptr;
static Stream legacy;

// 13.1, or what a test asks for, as 12040: then it lacks the functions that came later.
static int version_of_driver() {
    const char *given = getenv("FAKE_DRIVER_VERSION");
    return given ? atoi(given) : CUDA_VERSION;
}

static CUresult refuse(CUresult error, const std::string &why) {
    reason = why;
    return error;
}

// Every function begins with it: counts the call, and fails where a test wants it.
static CUresult entered(std::string name, bool needs_context) {
    std::lock_guard<std::mutex> lock(state);
    size_t version = name.rfind("_v");
    if (version != std::string::npos) name.resize(version);  // cuda.h renames some functions
    counts[name]++;
    if (sticky) return refuse(sticky, "an earlier kernel has failed");
    auto found = failures.find(name);
    if (found != failures.end()) {
        CUresult error = found->second;
        failures.erase(found);
        return refuse(error, name + " was asked to fail");
    }
    if (needs_context && !current)
        return refuse(CUDA_ERROR_INVALID_CONTEXT, name + ": no context is current");
    return CUDA_SUCCESS;
}
#define ENTER(needs_context) \
    if (CUresult error_ = entered(__func__, needs_context)) return error_
// What a thread may not do while it captures launches, unless the mode is "relaxed".
#define UNSAFE()                                                                               \
    if (captured_here && captured_here->mode != CU_STREAM_CAPTURE_MODE_RELAXED) {              \
        captured_here->is_invalid = true;                                                      \
        return refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, std::string(__func__) + " while " \
                      "launches are captured");                                                \
    }

static Stream *of(CUstream stream) {
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) return &legacy;
    auto own = reinterpret_cast<Stream *>(stream);
    return streams.count(own) ? own : nullptr;
}

static CUresult inside(uintptr_t address, size_t size, const char *what) {
    auto after = pieces.upper_bound(address);
    if (after != pieces.begin()) {
        auto [begin, piece] = *std::prev(after);
        if (address + size <= begin + piece.size) {
            if (!piece.is_host && current && piece.device != current->device)
                return refuse(CUDA_ERROR_INVALID_VALUE, std::string(what) + " of another GPU");
            return CUDA_SUCCESS;
        }
    }
    return refuse(CUDA_ERROR_INVALID_VALUE, std::string(what) + " is not in one allocation");
}

// Queues work of a stream, or adds it to what is captured.
static CUresult queued(CUstream stream, Work work) {
    std::lock_guard<std::mutex> lock(state);
    Stream *own = of(stream);
    if (!own) return refuse(CUDA_ERROR_INVALID_HANDLE, "an unknown stream");
    if (current && own != &legacy && own->device != current->device)
        return refuse(CUDA_ERROR_INVALID_HANDLE, "a stream of another GPU");
    if (own->graph) {
        if (own->is_invalid) return refuse(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "capture");
        own->graph->nodes.push_back(std::move(work));
    } else {
        own->queue.emplace_back(++numbers, std::move(work));
    }
    return CUDA_SUCCESS;
}

// The host waits: counted if there is something to wait for.
static void waits(Stream *own, unsigned long last) {
    std::lock_guard<std::mutex> lock(state);
    if (!own->queue.empty() && own->queue.front().first <= last) counts["waits"]++;
}

// Does what is queued in a stream, up to a number.
static CUresult drained(Stream *own, unsigned long last) {
    std::lock_guard<std::recursive_mutex> lock(working);
    while (true) {
        Work work;
        {
            std::lock_guard<std::mutex> inner(state);
            if (sticky) return sticky;
            if (own->queue.empty() || own->queue.front().first > last) return CUDA_SUCCESS;
            work = std::move(own->queue.front().second);
            own->queue.pop_front();
        }
        if (CUresult error = work()) {
            std::lock_guard<std::mutex> inner(state);
            return sticky = error;
        }
    }
}

static CUresult drained_all() {
    std::vector<Stream *> all;
    {
        std::lock_guard<std::mutex> lock(state);
        all.assign(streams.begin(), streams.end());
    }
    all.push_back(&legacy);
    for (Stream *one : all)
        if (CUresult error = drained(one, ~0ul)) return error;
    return CUDA_SUCCESS;
}

static CUdeviceptr taken(size_t size, bool is_host) {
    void *found = nullptr;
    if (posix_memalign(&found, 256, size + 256)) return 0;
    memset(found, kPoison, size);
    pieces[uintptr_t(found)] = {size, is_host, current ? current->device : 0};
    return CUdeviceptr(found);
}

// Freed memory is filled and never used again, so that who reads it finds no old numbers.
static CUresult given_back(uintptr_t address, bool is_host) {
    auto found = pieces.find(address);
    if (found == pieces.end() || found->second.is_host != is_host)
        return refuse(CUDA_ERROR_INVALID_VALUE, "memory that was not allocated is freed");
    memset(reinterpret_cast<void *>(address), kPoison, found->second.size);
    if (!is_host) held_bytes -= found->second.size;
    pieces.erase(found);
    return CUDA_SUCCESS;
}

extern "C" {

// For tests.
void fake_launcher(Launcher given) { launcher = given; }
long fake_count(const char *name) { return counts[name]; }
void fake_fail(const char *name, int error) { failures[name] = CUresult(error); }
void fake_total(size_t size) { total_bytes = size; }
long fake_pieces(int is_host) {
    long found = 0;
    for (auto &[begin, piece] : pieces) found += piece.is_host == bool(is_host);
    return found;
}
const char *fake_reason() { return reason.c_str(); }
size_t fake_rest(uintptr_t address) {  // bytes from there to the end of its allocation
    std::lock_guard<std::mutex> lock(state);
    auto after = pieces.upper_bound(address);
    if (after == pieces.begin()) return 0;
    auto [begin, piece] = *std::prev(after);
    return address < begin + piece.size ? begin + piece.size - address : 0;
}

CUresult cuGetErrorName(CUresult error, const char **out) {
    *out = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
           : error == CUDA_ERROR_ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR";
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char **out) {
    *out = reason.c_str();
    return CUDA_SUCCESS;
}
CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *out) { *out = version_of_driver(); return CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *out) { *out = kDevices; return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *out, int index) {
    *out = index;
    return index < kDevices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetName(char *out, int size, CUdevice) {
    snprintf(out, size, "GPU of the tests");
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid *out, CUdevice device) {
    memset(out, device + 1, sizeof *out);
    return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t *out, CUdevice) { *out = total_bytes; return CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *out, CUdevice_attribute which, CUdevice) {
    static const std::map<int, int> known = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4},
        {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 2619000},
        {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120},
        {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 227 << 10},
    };
    auto found = known.find(which);
    *out = found == known.end() ? 0 : found->second;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
    ENTER(false);
    *out = &contexts[device];
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { current = context; return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *out) { *out = current; return CUDA_SUCCESS; }
CUresult cuCtxPushCurrent(CUcontext context) {
    pushed.push_back(current);
    current = context;
    return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext *out) {
    if (out) *out = current;
    if (pushed.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    current = pushed.back();
    pushed.pop_back();
    return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice *out) {
    ENTER(true);
    *out = current->device;
    return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice_v2(CUdevice *out, CUcontext context) {
    if (!context) context = current;
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    *out = context->device;
    return CUDA_SUCCESS;
}
CUresult cuCtxGetId(CUcontext context, unsigned long long *out) {
    *out = (context ? context : current) - contexts + 1;
    return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() {
    ENTER(true);
    UNSAFE();
    return drained_all();
}
CUresult cuMemGetInfo(size_t *free_out, size_t *total) {
    ENTER(true);
    *free_out = total_bytes - held_bytes;
    *total = total_bytes;
    return CUDA_SUCCESS;
}
CUresult cuMemAlloc(CUdeviceptr *out, size_t size) {
    ENTER(true);
    UNSAFE();
    std::lock_guard<std::mutex> lock(state);
    if (!size) return refuse(CUDA_ERROR_INVALID_VALUE, "no bytes");
    if (size > total_bytes - held_bytes) return refuse(CUDA_ERROR_OUT_OF_MEMORY, "out of memory");
    held_bytes += size;
    *out = taken(size, false);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemFree(CUdeviceptr address) {
    ENTER(true);
    UNSAFE();
    if (CUresult error = drained_all()) return error;
    std::lock_guard<std::mutex> lock(state);
    return given_back(address, false);
}
CUresult cuMemAllocHost(void **out, size_t size) {
    ENTER(true);
    UNSAFE();
    std::lock_guard<std::mutex> lock(state);
    *out = reinterpret_cast<void *>(taken(size, true));
    return CUDA_SUCCESS;
}
CUresult cuMemFreeHost(void *address) {
    ENTER(false);
    UNSAFE();
    if (CUresult error = drained_all()) return error;
    std::lock_guard<std::mutex> lock(state);
    return given_back(uintptr_t(address), true);
}
CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t size, CUstream stream) {
    ENTER(true);
    {
        std::lock_guard<std::mutex> lock(state);
        if (CUresult error = inside(address, size, "what is filled")) return error;
    }
    return queued(stream, [=] {
        memset(reinterpret_cast<void *>(address), value, size);
        return CUDA_SUCCESS;
    });
}
CUresult cuMemcpyAsync(CUdeviceptr target, CUdeviceptr source, size_t size, CUstream stream) {
    ENTER(true);
    {
        std::lock_guard<std::mutex> lock(state);
        if (CUresult error = inside(target, size, "the target of a copy")) return error;
        if (CUresult error = inside(source, size, "the source of a copy")) return error;
    }
    return queued(stream, [=]() -> CUresult {
        std::lock_guard<std::mutex> lock(state);
        if (inside(target, size, "a target") || inside(source, size, "a source"))
            return refuse(CUDA_ERROR_ILLEGAL_ADDRESS, "memory was freed before it was copied");
        memcpy(reinterpret_cast<void *>(target), reinterpret_cast<void *>(source), size);
        return CUDA_SUCCESS;
    });
}

CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int) {
    ENTER(true);
    std::lock_guard<std::mutex> lock(state);
    auto made = new Stream;
    made->device = current->device;
    made->flags = flags;
    streams.insert(made);
    *out = reinterpret_cast<CUstream>(made);
    return CUDA_SUCCESS;
}
CUresult cuStreamCreate(CUstream *out, unsigned flags) {
    return cuStreamCreateWithPriority(out, flags, 0);
}
CUresult cuStreamDestroy(CUstream stream) {
    ENTER(false);
    Stream *own;
    {
        std::lock_guard<std::mutex> lock(state);
        own = of(stream);
    }
    if (!own) return CUDA_ERROR_INVALID_HANDLE;
    CUresult error = drained(own, ~0ul);
    std::lock_guard<std::mutex> lock(state);
    streams.erase(own);
    return error;
}
CUresult cuStreamGetCtx(CUstream stream, CUcontext *out) {
    std::lock_guard<std::mutex> lock(state);
    Stream *own = of(stream);
    *out = own ? &contexts[own->device] : nullptr;
    return own ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuStreamGetFlags(CUstream stream, unsigned *out) {
    std::lock_guard<std::mutex> lock(state);
    *out = of(stream)->flags;
    return CUDA_SUCCESS;
}
CUresult cuStreamGetPriority(CUstream, int *out) { *out = 0; return CUDA_SUCCESS; }
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    *least = *greatest = 0;
    return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream stream) {
    ENTER(true);
    Stream *own;
    {
        std::lock_guard<std::mutex> lock(state);
        own = of(stream);
        if (own && own->graph) {
            own->is_invalid = true;
            return refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a captured stream is awaited");
        }
        if (own == &legacy)  // it waits for blocking streams, which may not be captured then
            for (Stream *one : streams)
                if (one->graph && !(one->flags & CU_STREAM_NON_BLOCKING)) {
                    one->is_invalid = true;
                    return refuse(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "the default stream");
                }
    }
    if (!own) return CUDA_ERROR_INVALID_HANDLE;
    waits(own, ~0ul);
    return drained(own, ~0ul);
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
    ENTER(true);
    CUevent_st seen = *event;
    return queued(stream, [seen] { return drained(seen.stream, seen.number); });
}

CUresult cuEventCreate(CUevent *out, unsigned) {
    ENTER(true);
    *out = new CUevent_st;
    return CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent event) { delete event; return CUDA_SUCCESS; }
CUresult cuEventRecord(CUevent event, CUstream stream) {
    ENTER(true);
    std::lock_guard<std::mutex> lock(state);
    Stream *own = of(stream);
    if (!own) return CUDA_ERROR_INVALID_HANDLE;
    if (own->graph) return refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "an event in a capture");
    event->stream = own;
    event->number = ++numbers;
    return CUDA_SUCCESS;
}
CUresult cuEventSynchronize(CUevent event) {
    ENTER(true);
    UNSAFE();
    if (!event->stream) return CUDA_SUCCESS;
    waits(event->stream, event->number);
    return drained(event->stream, event->number);
}
CUresult cuEventQuery(CUevent event) {
    ENTER(true);
    UNSAFE();
    std::lock_guard<std::mutex> lock(state);
    Stream *own = event->stream;
    bool is_done = !own || own->queue.empty() || own->queue.front().first > event->number;
    return is_done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
    ENTER(true);
    std::lock_guard<std::mutex> lock(state);
    Stream *own = of(stream);
    if (!own || own == &legacy || own->graph) return CUDA_ERROR_ILLEGAL_STATE;
    own->graph = new CUgraph_st;
    own->is_invalid = false;
    own->mode = mode;
    own->thread = std::this_thread::get_id();
    captured_here = own;
    return CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph *out) {
    ENTER(true);
    std::lock_guard<std::mutex> lock(state);
    Stream *own = of(stream);
    if (out) *out = nullptr;
    if (!own || !own->graph) return refuse(CUDA_ERROR_ILLEGAL_STATE, "nothing is captured");
    if (own->thread != std::this_thread::get_id() && own->mode != CU_STREAM_CAPTURE_MODE_RELAXED)
        return refuse(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "another thread ends a capture");
    captured_here = nullptr;
    CUgraph made = own->graph;
    own->graph = nullptr;
    if (own->is_invalid) return refuse(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "a failed capture");
    if (out) *out = made;
    return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *out) {
    std::lock_guard<std::mutex> lock(state);
    Stream *own = of(stream);
    *out = !own->graph ? CU_STREAM_CAPTURE_STATUS_NONE
           : own->is_invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                             : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}
CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *out, cuuint64_t *id,
                                CUgraph *graph, const CUgraphNode **, const CUgraphEdgeData **,
                                size_t *count) {
    cuStreamIsCapturing(stream, out);
    if (id) *id = 1;
    if (graph) *graph = of(stream)->graph;
    if (count) *count = 0;
    return CUDA_SUCCESS;
}
CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    ENTER(true);
    params->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    *out = new CUgraphExec_st{graph->nodes};
    return CUDA_SUCCESS;
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long) {
    ENTER(true);
    *out = new CUgraphExec_st{graph->nodes};
    return CUDA_SUCCESS;
}
CUresult cuGraphClone(CUgraph *out, CUgraph graph) {
    ENTER(false);
    *out = new CUgraph_st{*graph};
    return CUDA_SUCCESS;
}
CUresult cuGraphUpload(CUgraphExec, CUstream) { return CUDA_SUCCESS; }
CUresult cuGraphGetId(CUgraph, unsigned *out) { *out = 1; return CUDA_SUCCESS; }
CUresult cuGraphExecGetId(CUgraphExec, unsigned *out) { *out = 1; return CUDA_SUCCESS; }
CUresult cuGraphGetNodes(CUgraph, CUgraphNode *, size_t *count) {
    *count = 0;
    return CUDA_SUCCESS;
}
CUresult cuUserObjectCreate(CUuserObject *out, void *, CUhostFn, unsigned, unsigned) {
    *out = reinterpret_cast<CUuserObject>(1);
    return CUDA_SUCCESS;
}
CUresult cuUserObjectRetain(CUuserObject, unsigned) { return CUDA_SUCCESS; }
CUresult cuUserObjectRelease(CUuserObject, unsigned) { return CUDA_SUCCESS; }
CUresult cuGraphRetainUserObject(CUgraph, CUuserObject, unsigned, unsigned) { return CUDA_SUCCESS; }
CUresult cuGraphReleaseUserObject(CUgraph, CUuserObject, unsigned) { return CUDA_SUCCESS; }
CUresult cuGraphDestroy(CUgraph graph) { delete graph; return CUDA_SUCCESS; }
CUresult cuGraphExecDestroy(CUgraphExec graph) { delete graph; return CUDA_SUCCESS; }
CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
    ENTER(true);
    for (Work &node : graph->nodes)
        if (CUresult error = queued(stream, node)) return error;
    return CUDA_SUCCESS;
}

// The "machine code" is a text: the kernel's symbol, and the sizes of its arguments.
CUresult cuLibraryLoadData(CUlibrary *out, const void *code, CUjit_option *, void **, unsigned,
                           CUlibraryOption *, void **, unsigned) {
    ENTER(true);
    UNSAFE();
    std::istringstream text(static_cast<const char *>(code));
    auto made = new CUkern_st;
    std::string magic;
    text >> magic >> made->symbol;
    if (magic != "CUBIN") return refuse(CUDA_ERROR_INVALID_IMAGE, "not a cubin");
    for (int size; text >> size;) made->sizes.push_back(size);
    *out = new CUlib_st{{made}};
    return CUDA_SUCCESS;
}
CUresult cuLibraryUnload(CUlibrary) { return CUDA_SUCCESS; }
CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name) {
    ENTER(true);
    for (CUkern_st *one : library->kernels)
        if (one->symbol == name) {
            *out = one;
            return CUDA_SUCCESS;
        }
    return refuse(CUDA_ERROR_NOT_FOUND, "no such kernel");
}
CUresult cuKernelGetAttribute(int *out, CUfunction_attribute, CUkernel, CUdevice) {
    *out = 0;
    return CUDA_SUCCESS;
}
CUresult cuKernelSetAttribute(CUfunction_attribute which, int value, CUkernel kernel,
                              CUdevice device) {
    ENTER(true);
    if (which != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value > 227 << 10)
        return refuse(CUDA_ERROR_INVALID_VALUE, "shared memory");
    kernel->shared[device] = value;
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params,
                          void **) {
    ENTER(true);
    auto kernel = reinterpret_cast<CUkern_st *>(function);
    unsigned threads = config->blockDimX * config->blockDimY * config->blockDimZ;
    unsigned most = 48 << 10;
    if (kernel->shared.count(current->device)) most = kernel->shared[current->device];
    if (!config->gridDimX || !config->gridDimY || !config->gridDimZ || config->gridDimY > 65535 ||
        config->gridDimZ > 65535 || !threads || threads > 1024 || config->sharedMemBytes > most)
        return refuse(CUDA_ERROR_INVALID_VALUE, "the sizes of a launch");
    auto bytes = std::make_shared<std::vector<std::vector<char>>>();
    for (size_t i = 0; i < kernel->sizes.size(); i++) {
        if (!params[i]) return refuse(CUDA_ERROR_INVALID_VALUE, "an argument is missing");
        auto first = static_cast<char *>(params[i]);
        bytes->emplace_back(first, first + kernel->sizes[i]);
    }
    std::vector<unsigned> grid{config->gridDimX, config->gridDimY, config->gridDimZ};
    return queued(config->hStream, [=]() -> CUresult {
        std::vector<void *> values;
        for (auto &one : *bytes) values.push_back(one.data());
        if (launcher && launcher(kernel->symbol.c_str(), grid.data(), values.data(), values.size()))
            return refuse(CUDA_ERROR_ILLEGAL_ADDRESS, "a kernel has failed");
        return CUDA_SUCCESS;
    });
}

CUresult cuGetProcAddress_v2(const char *symbol, void **out, int version, cuuint64_t,
                             CUdriverProcAddressQueryResult *status) {
    *out = nullptr;
    if (version > version_of_driver()) return CUDA_ERROR_NOT_FOUND;
    for (const char *ending : {"_v4", "_v3", "_v2", ""}) {
        if (!strcmp(symbol, "cuCtxGetDevice") && *ending) continue;
        void *found = dlsym(RTLD_DEFAULT, (std::string(symbol) + ending).c_str());
        if (found && !*out) *out = found;
    }
    if (!strcmp(symbol, "cuGraphInstantiate"))
        *out = reinterpret_cast<void *>(cuGraphInstantiateWithFlags);
    if (status) *status = *out ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
}
