// A stand-in for the CUDA driver on machines without a GPU, built as libcuda.so.1. It is stricter than the real one and
// runs the text of the very modules, which the tests compile for the host.
//
//   STANDIN_LOG       file that gets a line for every call that matters; "wrong: ..." for what no caller may do
//   STANDIN_MAP       file that tells, for the CRC-32 of an image, the host library with its kernels
//   STANDIN_PROVIDER  path of the loaded stand-in provider
//   STANDIN_CC        compute capability of the device, such as 80
//   STANDIN_FAIL      a call that fails with an error, such as cuLaunchKernel=719
//   STANDIN_CURRENT   1: the context is current in every thread, as after a call of the CUDA runtime
//
// All but the third are read again at each call.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "cuda/driver_api.h"
#include "device.h"
#include "kernel_layout.h"

using onnxfuse::cuda::RowsLayout;
using onnxfuse::cuda::StridedLayout;

// X(number, name, words)
#define STANDIN_ERRORS(X)                                                           \
  X(1, INVALID_VALUE, "invalid argument")                                           \
  X(2, OUT_OF_MEMORY, "out of memory")                                              \
  X(3, NOT_INITIALIZED, "initialization error")                                     \
  X(100, NO_DEVICE, "no CUDA-capable device is detected")                           \
  X(101, INVALID_DEVICE, "invalid device ordinal")                                  \
  X(200, INVALID_IMAGE, "device kernel image is invalid")                           \
  X(201, INVALID_CONTEXT, "invalid device context")                                 \
  X(209, NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device") \
  X(218, INVALID_PTX, "a PTX JIT compilation failed")                               \
  X(222, UNSUPPORTED_PTX_VERSION, "the provided PTX was compiled with an unsupported toolchain.") \
  X(400, INVALID_HANDLE, "invalid resource handle")                                 \
  X(500, NOT_FOUND, "named symbol not found")                                       \
  X(700, ILLEGAL_ADDRESS, "an illegal memory access was encountered")               \
  X(701, LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch")        \
  X(716, MISALIGNED_ADDRESS, "misaligned address")                                  \
  X(719, LAUNCH_FAILED, "unspecified launch failure")                               \
  X(900, STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing")

enum Error {
  kDone = 0,
#define STANDIN_NUMBER(number, name, words) k_##name = number,
  STANDIN_ERRORS(STANDIN_NUMBER)
#undef STANDIN_NUMBER
};

struct CUstream_st;
struct CUctx_st {
  int retained = 0;
};

using HostKernel = void (*)(const unsigned* grid, const unsigned* block, const void* arguments);

// What the map says of an image: bytes of an element of each tensor input and output, and how many scalar inputs.
struct Host {
  std::string library, prefix;
  std::vector<size_t> x, y;
  size_t c = 0;
};

struct CUmod_st {
  int number = 0;
  bool loaded = true;
  Host host;
  void* library = nullptr;
};

struct CUfunc_st {
  CUmod_st* module = nullptr;
  std::string name;
  HostKernel run = nullptr;
};

namespace {

constexpr int kPtxVersion = 63;  // the latest that the oldest driver knows: CUDA 10
constexpr int kProcessors = 3;
constexpr unsigned kMostThreads = 1024, kMostBlocksY = 65535;
constexpr unsigned kBound = 256;  // __launch_bounds__ of all kernels
constexpr size_t kVectorBytes = 16;
constexpr int kErrorLog = 5, kErrorLogBytes = 6;  // options of cuModuleLoadDataEx

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

__attribute__((format(printf, 1, 2))) void log(const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(line, sizeof line - 1, format, arguments);
  va_end(arguments);
  const size_t bytes = std::min(static_cast<size_t>(length), sizeof line - 2);
  line[bytes] = '\n';
  const int file = open(variable("STANDIN_LOG").c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) return;
  if (write(file, line, bytes + 1) < 0) std::perror("stand-in driver");
  close(file);
}

template <typename... Values>
int wrong(int error, const char* format, Values... values) {
  log((std::string("wrong: ") + format).c_str(), values...);
  return error;
}
int wrong(int error, const char* what) {
  log("wrong: %s", what);
  return error;
}

// The functions of device.h, in the provider that the runtime has loaded.
struct Provider {
  decltype(&standin_host_address) host_address;
  decltype(&standin_is_stream) is_stream;
  decltype(&standin_in_run) in_run;

  static const Provider& get() {
    static const Provider provider;
    return provider;
  }

 private:
  Provider() {
    void* const library = dlopen(variable("STANDIN_PROVIDER").c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) {
      std::fprintf(stderr, "stand-in driver: no provider: %s\n", dlerror());
      std::abort();
    }
    host_address = reinterpret_cast<decltype(host_address)>(dlsym(library, "standin_host_address"));
    is_stream = reinterpret_cast<decltype(is_stream)>(dlsym(library, "standin_is_stream"));
    in_run = reinterpret_cast<decltype(in_run)>(dlsym(library, "standin_in_run"));
  }
};

std::mutex mutex;  // of all that follows
bool started = false;
CUctx_st primary;
int modules = 0;
thread_local std::vector<CUctx_st*> pushed;

CUctx_st* current() {
  if (!pushed.empty()) return pushed.back();
  return variable("STANDIN_CURRENT") == "1" ? &primary : nullptr;
}

// What every call begins with: 0, or the error that it is to give.
int begin(const char* call, bool allowed_in_run = false) {
  const std::string fails = variable("STANDIN_FAIL");
  const size_t sign = fails.find('=');
  if (sign != std::string::npos && fails.compare(0, sign, call) == 0) {
    log("fail %s", call);
    return std::atoi(fails.c_str() + sign + 1);
  }
  if (!started && std::strcmp(call, "cuInit") != 0) return wrong(k_NOT_INITIALIZED, "%s before cuInit", call);
  if (!allowed_in_run && Provider::get().in_run())
    return wrong(k_STREAM_CAPTURE_UNSUPPORTED, "%s in a run: a graph could not be captured", call);
  return kDone;
}
#define STANDIN_BEGIN(...) \
  if (const int error_ = begin(__VA_ARGS__)) return error_

uint64_t number(const uint8_t* at, size_t bytes) {
  uint64_t value = 0;
  std::memcpy(&value, at, bytes);
  return value;
}

// ---- images

uint32_t crc32(const uint8_t* data, size_t bytes) {
  uint32_t crc = ~0u;
  for (size_t k = 0; k < bytes; ++k) {
    crc ^= data[k];
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
  }
  return ~crc;
}

// Bytes of an ELF file: up to the end of its last part.
size_t elf_bytes(const uint8_t* image) {
  const size_t sections = number(image + 40, 8), size = number(image + 58, 2), count = number(image + 60, 2);
  size_t end = std::max(sections + size * count,
                        static_cast<size_t>(number(image + 32, 8) + number(image + 54, 2) * number(image + 56, 2)));
  for (size_t k = 0; k < count; ++k) {
    const uint8_t* const section = image + sections + k * size;
    constexpr uint64_t kNothingInFile = 8;
    if (number(section + 4, 4) != kNothingInFile)
      end = std::max(end, static_cast<size_t>(number(section + 24, 8) + number(section + 32, 8)));
  }
  return end;
}

// The number behind a word of PTX, its dot left out: 63 for ".version 6.3".
int ptx_number(const std::string& text, const std::string& word) {
  const size_t at = text.find("\n" + word);
  if (at == std::string::npos) return -1;
  std::string digits;
  for (size_t k = at + 1 + word.size(); k < text.size() && text[k] != '\n' && text[k] != ','; ++k)
    if (text[k] >= '0' && text[k] <= '9') digits += text[k];
  return std::atoi(digits.c_str());
}

// Checks that the device runs the image; finds out its bytes and what it is.
int look_at(const uint8_t* image, int device, size_t& bytes, std::string& what) {
  if (std::memcmp(image, "\177ELF", 4) == 0) {
    bytes = elf_bytes(image);
    // The form of ABI 8 has the architecture one byte further on.
    const auto flags = static_cast<unsigned>(number(image + 48, 4));
    const int made_for = static_cast<int>(image[8] >= 8 ? flags >> 8 & 0xFF : flags & 0xFF);
    what = "cubin " + std::to_string(made_for);
    return made_for / 10 == device / 10 && made_for % 10 <= device % 10 ? kDone : k_NO_BINARY_FOR_GPU;
  }
  const std::string text(reinterpret_cast<const char*>(image));
  bytes = text.size() + 1;
  const int version = ptx_number(text, ".version "), target = ptx_number(text, ".target sm_");
  if (version < 0 || target < 0) return k_INVALID_IMAGE;
  what = "ptx " + std::to_string(target);
  if (version > kPtxVersion) return k_UNSUPPORTED_PTX_VERSION;
  return target <= device ? kDone : k_NO_BINARY_FOR_GPU;
}

std::vector<size_t> sizes(const std::string& text) {
  std::vector<size_t> found;
  for (const char digit : text)
    if (digit != '-') found.push_back(static_cast<size_t>(digit - '0'));
  return found;
}

// A line of the map: CRC-32 in decimal, library, prefix, digits for x (or -), number of c, digits for y.
bool find_host(uint32_t checksum, Host& host) {
  std::ifstream file(variable("STANDIN_MAP"));
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    uint32_t other = 0;
    std::string x, y;
    fields >> other >> host.library >> host.prefix >> x >> host.c >> y;
    host.x = sizes(x);
    host.y = sizes(y);
    if (fields && other == checksum) return true;
  }
  return false;
}

// ---- launches

// The arguments of a launch, in whatever struct.
struct Arguments {
  std::vector<uint8_t> bytes;
  std::string over = "-";  // the input whose place the first output takes

  uint32_t u32(size_t at, size_t place = 0) const { return static_cast<uint32_t>(number(&bytes[at + 4 * place], 4)); }
  uint64_t address(size_t at, size_t place) const { return number(&bytes[at + 8 * place], 8); }
};

// What a launch touches of each tensor, in elements, and whether 16 bytes at a time.
struct Touched {
  std::vector<uint64_t> x;
  uint64_t y = 0;
  std::vector<bool> moves;
  bool vectors = false;
  bool sound = true;  // the numbers agree with each other
};

// The last element that an input has along dims of which it has strides.
uint64_t last_element(const Arguments& a, size_t size_at, size_t stride_at, size_t rank) {
  uint64_t last = 0;
  for (size_t d = 0; d < rank; ++d) last += uint64_t{a.u32(size_at, d) - 1} * a.u32(stride_at, d);
  return last;
}

uint64_t product(const Arguments& a, size_t size_at, size_t rank) {
  uint64_t all = 1;
  for (size_t d = 0; d < rank; ++d) all *= a.u32(size_at, d);
  return all;
}

Touched touched(const RowsLayout& l, const Arguments& a, size_t count) {
  Touched t;
  const size_t outer = a.u32(l.outer);
  const uint64_t columns = a.u32(l.columns);
  t.y = a.u32(l.rows) * columns;
  t.vectors = a.u32(l.vectors) != 0;
  t.sound = outer <= onnxfuse::cuda::kOuter && product(a, l.size, outer) == a.u32(l.rows);
  for (size_t k = 0; k < count && t.sound; ++k) {
    t.moves.push_back(a.u32(l.moves, k) == 1);
    t.sound &= a.u32(l.moves, k) <= 1;
    t.x.push_back(1 + (t.moves[k] ? columns - 1 : 0) +
                  last_element(a, l.size, l.stride + 4 * k * onnxfuse::cuda::kOuter, outer));
  }
  return t;
}

Touched touched(const StridedLayout& l, const Arguments& a, size_t count) {
  Touched t;
  const size_t rank = a.u32(l.rank);
  t.y = a.u32(l.elements);
  t.sound = rank <= onnxfuse::cuda::kRank && product(a, l.size, rank) == t.y;
  for (size_t k = 0; k < count && t.sound; ++k) {
    t.moves.push_back(true);
    t.x.push_back(1 + last_element(a, l.size, l.stride + 4 * k * onnxfuse::cuda::kRank, rank));
  }
  return t;
}

// Puts the host's address of a tensor in the place of the device's.
int translate(Arguments& a, size_t at, size_t place, uint64_t elements, size_t element, bool vectors,
              const char* what) {
  const uint64_t address = a.address(at, place);
  if (address % element != 0 || (vectors && address % kVectorBytes != 0))
    return wrong(k_MISALIGNED_ADDRESS, "%s %zu is not aligned", what, place);
  void* const host = Provider::get().host_address(reinterpret_cast<const void*>(address), elements * element);
  if (host == nullptr)
    return wrong(k_ILLEGAL_ADDRESS, "%s %zu: %llu elements are not in one block of device memory", what, place,
                 static_cast<unsigned long long>(elements));
  std::memcpy(&a.bytes[at + 8 * place], &host, sizeof host);
  return kDone;
}

template <typename Layout>
int prepare(const Host& host, const void* given, Arguments& a) {
  const Layout layout(host.x.size(), host.c, host.y.size());
  const auto* const bytes = static_cast<const uint8_t*>(given);
  a.bytes.assign(bytes, bytes + layout.bytes);
  for (size_t k = 0; k < host.x.size(); ++k)
    if (a.address(layout.inputs, k) == a.address(layout.outputs, 0)) a.over = "x" + std::to_string(k);
  const Touched t = touched(layout, a, host.x.size());
  if (!t.sound || t.y == 0 || t.y >= uint64_t{1} << 31) return wrong(k_INVALID_VALUE, "arguments do not fit together");
  for (size_t k = 0; k < host.x.size(); ++k)
    if (const int error = translate(a, layout.inputs, k, t.x[k], host.x[k], t.vectors && t.moves[k], "input"))
      return error;
  for (size_t k = 0; k < host.y.size(); ++k)
    if (const int error = translate(a, layout.outputs, k, t.y, host.y[k], t.vectors, "output"))
      return error;
  return kDone;
}

}  // namespace

extern "C" {

int cuInit(unsigned flags) {
  STANDIN_BEGIN("cuInit", true);
  const std::lock_guard<std::mutex> lock(mutex);
  started = true;
  log("init");
  return flags == 0 ? kDone : k_INVALID_VALUE;
}

int cuDriverGetVersion(int* version) {
  STANDIN_BEGIN("cuDriverGetVersion", true);
  *version = 12000;
  return kDone;
}

int cuDeviceGet(onnxfuse::cuda::Device* device, int ordinal) {
  STANDIN_BEGIN("cuDeviceGet");
  *device = 0;
  return ordinal == 0 ? kDone : k_INVALID_DEVICE;
}

int cuDeviceGetAttribute(int* value, int attribute, onnxfuse::cuda::Device device) {
  STANDIN_BEGIN("cuDeviceGetAttribute");
  if (device != 0) return k_INVALID_DEVICE;
  const int capability = std::atoi(variable("STANDIN_CC").c_str());
  switch (attribute) {
    case onnxfuse::cuda::Driver::kProcessors: *value = kProcessors; return kDone;
    case onnxfuse::cuda::Driver::kMajor: *value = capability / 10; return kDone;
    case onnxfuse::cuda::Driver::kMinor: *value = capability % 10; return kDone;
    default: return wrong(k_INVALID_VALUE, "attribute %d", attribute);
  }
}

int cuDevicePrimaryCtxRetain(CUctx_st** context, onnxfuse::cuda::Device device) {
  STANDIN_BEGIN("cuDevicePrimaryCtxRetain");
  if (device != 0) return k_INVALID_DEVICE;
  const std::lock_guard<std::mutex> lock(mutex);
  ++primary.retained;
  *context = &primary;
  log("retain");
  return kDone;
}

int cuDevicePrimaryCtxRelease_v2(onnxfuse::cuda::Device device) {
  STANDIN_BEGIN("cuDevicePrimaryCtxRelease");
  const std::lock_guard<std::mutex> lock(mutex);
  log("release");
  if (device != 0 || primary.retained-- == 0) return wrong(k_INVALID_CONTEXT, "released more often than retained");
  return kDone;
}

int cuCtxGetCurrent(CUctx_st** context) {
  STANDIN_BEGIN("cuCtxGetCurrent", true);
  *context = current();
  return kDone;
}

int cuCtxPushCurrent_v2(CUctx_st* context) {
  STANDIN_BEGIN("cuCtxPushCurrent", true);
  const std::lock_guard<std::mutex> lock(mutex);
  if (context != &primary || primary.retained == 0) return wrong(k_INVALID_CONTEXT, "no such context to push");
  pushed.push_back(context);
  log("push");
  return kDone;
}

int cuCtxPopCurrent_v2(CUctx_st** context) {
  STANDIN_BEGIN("cuCtxPopCurrent", true);
  if (pushed.empty()) return wrong(k_INVALID_CONTEXT, "no context to pop");
  *context = pushed.back();
  pushed.pop_back();
  log("pop");
  return kDone;
}

int cuModuleLoadDataEx(CUmod_st** module, const void* image, unsigned count, int* options, void** values) {
  const auto* const data = static_cast<const uint8_t*>(image);
  size_t bytes = 0;
  std::string what = "?";
  int error = begin("cuModuleLoadDataEx");
  if (error == k_INVALID_PTX) {
    for (unsigned k = 0; k < count; ++k)
      for (unsigned other = 0; other < count; ++other)
        if (options[k] == kErrorLog && options[other] == kErrorLogBytes)
          std::snprintf(static_cast<char*>(values[k]), reinterpret_cast<size_t>(values[other]), "line 1: what is it?");
  }
  if (error != kDone) return error;
  const std::lock_guard<std::mutex> lock(mutex);
  if (current() == nullptr) return wrong(k_INVALID_CONTEXT, "a module is loaded without a context");
  error = look_at(data, std::atoi(variable("STANDIN_CC").c_str()), bytes, what);
  if (error != kDone) return wrong(error, "an image that the device does not run: %s", what.c_str());
  Host host;
  const uint32_t checksum = crc32(data, bytes);
  if (!find_host(checksum, host))
    return wrong(k_INVALID_IMAGE, "an image that nobody made: %s, %zu bytes", what.c_str(), bytes);
  void* const library = dlopen(host.library.c_str(), RTLD_NOW);
  if (library == nullptr) return wrong(k_INVALID_IMAGE, "%s", dlerror());
  *module = new CUmod_st{++modules, true, host, library};  // never freed: handles that are used too late shall be found
  log("load %s %u as %d", what.c_str(), checksum, modules);
  return kDone;
}

int cuModuleUnload(CUmod_st* module) {
  STANDIN_BEGIN("cuModuleUnload");
  const std::lock_guard<std::mutex> lock(mutex);
  if (current() == nullptr) return wrong(k_INVALID_CONTEXT, "a module is unloaded without a context");
  if (module == nullptr || !module->loaded) return wrong(k_INVALID_HANDLE, "a module is unloaded that is not there");
  module->loaded = false;
  log("unload %d", module->number);
  return kDone;
}

int cuModuleGetFunction(CUfunc_st** function, CUmod_st* module, const char* name) {
  STANDIN_BEGIN("cuModuleGetFunction");
  const std::lock_guard<std::mutex> lock(mutex);
  if (current() == nullptr || !module->loaded) return wrong(k_INVALID_CONTEXT, "a function is looked up where none is");
  void* const found = dlsym(module->library, (module->host.prefix + "_" + name).c_str());
  if (found == nullptr) return wrong(k_NOT_FOUND, "there is no %s", name);
  *function = new CUfunc_st{module, name, reinterpret_cast<HostKernel>(found)};
  return kDone;
}

int cuLaunchKernel(CUfunc_st* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream_st* stream, void** arguments,
                   void** extra) {
  STANDIN_BEGIN("cuLaunchKernel", true);
  if (current() != &primary) return wrong(k_INVALID_CONTEXT, "a launch without a context");
  if (!function->module->loaded) return wrong(k_INVALID_HANDLE, "a launch of a module that is not there");
  if (!Provider::get().is_stream(stream)) return wrong(k_INVALID_HANDLE, "a launch on a stream that is not there");
  if (!Provider::get().in_run()) return wrong(k_INVALID_VALUE, "a launch outside of a run");
  const uint64_t threads = uint64_t{block_x} * block_y * block_z;
  if (grid_x == 0 || grid_x >= 1u << 31 || grid_y == 0 || grid_y > kMostBlocksY || grid_z != 1 || threads == 0 ||
      threads > kMostThreads || block_z != 1 || arguments == nullptr || extra != nullptr || shared_bytes != 0)
    return wrong(k_INVALID_VALUE, "a launch of %u x %u x %u blocks of %u x %u x %u", grid_x, grid_y, grid_z, block_x,
                 block_y, block_z);
  if (threads > kBound) return wrong(k_LAUNCH_OUT_OF_RESOURCES, "a block of %u x %u threads", block_x, block_y);
  const Host& host = function->module->host;
  Arguments a;
  const int error = function->name == "rows" ? prepare<RowsLayout>(host, arguments[0], a)
                                             : prepare<StridedLayout>(host, arguments[0], a);
  if (error != kDone) return error;
  log("launch %d %s grid %u %u block %u %u stream %p over %s", function->module->number, function->name.c_str(), grid_x,
      grid_y, block_x, block_y, static_cast<void*>(stream), a.over.c_str());
  const unsigned grid[] = {grid_x, grid_y}, block[] = {block_x, block_y};
  function->run(grid, block, a.bytes.data());
  return kDone;
}

int cuGetErrorName(int error, const char** text) {
#define STANDIN_NAME(number, name, words) \
  if (error == number) return *text = "CUDA_ERROR_" #name, kDone;
  STANDIN_ERRORS(STANDIN_NAME)
#undef STANDIN_NAME
  return *text = nullptr, k_INVALID_VALUE;
}

int cuGetErrorString(int error, const char** text) {
#define STANDIN_WORDS(number, name, words) \
  if (error == number) return *text = words, kDone;
  STANDIN_ERRORS(STANDIN_WORDS)
#undef STANDIN_WORDS
  return *text = nullptr, k_INVALID_VALUE;
}

}  // extern "C"
