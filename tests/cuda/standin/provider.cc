// A stand-in for ONNX Runtime's CUDA provider on machines without a GPU: a plugin library that calls its provider
// "CUDAExecutionProvider", so that the runtime gives it the kernels that custom ops have for that one. It has no
// operators but the two that copy. STANDIN_OPS names further ones ("Mul,Add") that it takes and cannot run: for looking
// at where the runtime puts copies.
//
// Memory of the "device" is a file that is mapped twice. Addresses of the first mapping are what the runtime hands out,
// and any access there ends the process: as on a GPU, the host must not touch it. Copies and kernels use the second.
#include "device.h"
#include "plugin_api.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#define STANDIN_EXPORT extern "C" __attribute__((visibility("default")))

namespace standin {
namespace {

constexpr const char* kProvider = "CUDAExecutionProvider";
constexpr uint32_t kVendor = 0x10DE;
constexpr size_t kAlignment = 256;  // of the real provider
constexpr int kNotImplemented = 9;  // OrtErrorCode

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "stand-in provider: %s\n", what);
  std::abort();
}

// Blocks of device memory, none of which is given out twice. New ones are full of garbage and have more of it behind
// them, which must still be there at the end.
class Memory {
 public:
  Memory() {
    file_ = memfd_create("standin", MFD_CLOEXEC);
    if (file_ < 0 || ftruncate(file_, kBytes) != 0) die("no memory file");
    device_ = map(PROT_NONE);
    host_ = map(PROT_READ | PROT_WRITE);
  }

  void* allocate(size_t bytes) {
    if (bytes == 0) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    const size_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment + kAlignment;
    if (used_ + whole > kBytes) return nullptr;
    std::memset(host_ + used_, kGarbage, whole);
    blocks_[used_] = bytes;
    used_ += whole;
    return device_ + used_ - whole;
  }

  void free(void* address) {
    if (address == nullptr) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    const size_t at = static_cast<size_t>(static_cast<uint8_t*>(address) - device_);
    const auto block = blocks_.find(at);
    if (block == blocks_.end()) die("memory is freed that is not allocated");
    const size_t end = (block->second + kAlignment - 1) / kAlignment * kAlignment + kAlignment;
    for (size_t k = block->second; k < end; ++k)
      if (host_[at + k] != kGarbage) die("something was written behind a block of memory");
    blocks_.erase(block);
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at), static_cast<off_t>(end));
  }

  bool is_device(const void* address) const noexcept {
    const auto* const at = static_cast<const uint8_t*>(address);
    return at >= device_ && at < device_ + kBytes;
  }

  void* host_address(const void* address, size_t bytes) {
    if (!is_device(address)) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    const size_t at = static_cast<size_t>(static_cast<const uint8_t*>(address) - device_);
    auto block = blocks_.upper_bound(at);
    if (block == blocks_.begin()) return nullptr;
    --block;
    return at + bytes <= block->first + block->second ? host_ + at : nullptr;
  }

 private:
  static constexpr size_t kBytes = size_t{1} << 34;  // of addresses: what is not used takes no memory
  static constexpr uint8_t kGarbage = 0xA5;

  uint8_t* map(int protection) const {
    void* const at = mmap(nullptr, kBytes, protection, MAP_SHARED | MAP_NORESERVE, file_, 0);
    if (at == MAP_FAILED) die("no memory");
    return static_cast<uint8_t*>(at);
  }

  std::mutex mutex_;
  int file_ = -1;
  uint8_t* device_ = nullptr;
  uint8_t* host_ = nullptr;
  size_t used_ = 0;
  std::map<size_t, size_t> blocks_;  // begin -> bytes
};

struct Streams {
  std::mutex mutex;
  std::set<const void*> alive;
};

// Never freed: sessions may end after static objects are gone.
Memory& memory() {
  static auto& all = *new Memory;
  return all;
}
Streams& streams() {
  static auto& all = *new Streams;
  return all;
}
thread_local bool in_run = false;

const Api* api = nullptr;
OrtMemoryInfo* memory_info = nullptr;
OrtKernelRegistry* registry = nullptr;

#define STANDIN_CHECK(call)                                    \
  do {                                                         \
    if (OrtStatus* const status_ = (call)) return status_;     \
  } while (false)

OrtStatus* failure(const char* what) { return api->CreateStatus(onnxfuse::kOrtFail, what); }

// ---- copies

OrtStatus* copy(const OrtValue* from, OrtValue* to) {
  size_t bytes = 0;
  void *source = nullptr, *target = nullptr;
  STANDIN_CHECK(api->GetTensorSizeInBytes(from, &bytes));
  if (bytes == 0) return nullptr;
  STANDIN_CHECK(api->GetTensorMutableData(const_cast<OrtValue*>(from), &source));
  STANDIN_CHECK(api->GetTensorMutableData(to, &target));
  if (memory().is_device(source)) source = memory().host_address(source, bytes);
  if (memory().is_device(target)) target = memory().host_address(target, bytes);
  if (source == nullptr || target == nullptr) return failure("stand-in provider: a copy of memory that is not there");
  std::memcpy(target, source, bytes);
  return nullptr;
}

OrtStatus* copy_input(OrtKernelImpl*, OrtKernelContext* context) noexcept {
  const OrtValue* input = nullptr;
  STANDIN_CHECK(api->KernelContext_GetInput(context, 0, &input));
  OrtTensorTypeAndShapeInfo* raw = nullptr;
  STANDIN_CHECK(api->GetTensorTypeAndShape(input, &raw));
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, void (*)(OrtTensorTypeAndShapeInfo*)> info(
      raw, api->ReleaseTensorTypeAndShapeInfo);
  size_t rank = 0;
  STANDIN_CHECK(api->GetDimensionsCount(raw, &rank));
  std::vector<int64_t> dims(rank);
  STANDIN_CHECK(api->GetDimensions(raw, dims.data(), rank));
  OrtValue* output = nullptr;
  STANDIN_CHECK(api->KernelContext_GetOutput(context, 0, dims.data(), rank, &output));
  return copy(input, output);
}

OrtStatus* no_kernel(OrtKernelImpl*, OrtKernelContext*) noexcept {
  return api->CreateStatus(kNotImplemented, "stand-in provider: this operator is taken, but cannot run");
}

// `state` is the function that computes.
OrtStatus* create_kernel(void* state, const OrtKernelInfo*, OrtKernelImpl** out) noexcept {
  auto* const kernel = new OrtKernelImpl{};
  kernel->version = kApiVersion;
  kernel->Compute = reinterpret_cast<OrtStatus* (*)(OrtKernelImpl*, OrtKernelContext*)>(state);
  kernel->Release = [](OrtKernelImpl* self) { delete self; };
  *out = kernel;
  return nullptr;
}

// ---- what the provider is asked

// A kernel for all versions and types of an operator. `input` and `output`: where its first ones lie.
OrtStatus* add_kernel(const char* op, int input, int output, decltype(OrtKernelImpl::Compute) compute) {
  OrtKernelDefBuilder* builder = nullptr;
  STANDIN_CHECK(api->CreateKernelDefBuilder(&builder));
  STANDIN_CHECK(api->KernelDefBuilder_SetOperatorType(builder, op));
  STANDIN_CHECK(api->KernelDefBuilder_SetDomain(builder, ""));
  STANDIN_CHECK(api->KernelDefBuilder_SetSinceVersion(builder, 1, 1000));
  STANDIN_CHECK(api->KernelDefBuilder_SetExecutionProvider(builder, kProvider));
  STANDIN_CHECK(api->KernelDefBuilder_SetInputMemType(builder, 0, input));
  STANDIN_CHECK(api->KernelDefBuilder_SetOutputMemType(builder, 0, output));
  OrtKernelDef* definition = nullptr;
  STANDIN_CHECK(api->KernelDefBuilder_Build(builder, &definition));
  STANDIN_CHECK(api->KernelRegistry_AddKernel(registry, definition, create_kernel, reinterpret_cast<void*>(compute)));
  api->ReleaseKernelDef(definition);
  api->ReleaseKernelDefBuilder(builder);
  return nullptr;
}

OrtStatus* make_registry() {
  STANDIN_CHECK(api->CreateKernelRegistry(&registry));
  STANDIN_CHECK(add_kernel("MemcpyFromHost", onnxfuse::kMemoryCpuInput, onnxfuse::kMemoryDefault, copy_input));
  STANDIN_CHECK(add_kernel("MemcpyToHost", onnxfuse::kMemoryDefault, kMemoryCpuOutput, copy_input));
  const char* const named = std::getenv("STANDIN_OPS");
  const std::string ops = named == nullptr ? "" : named;
  for (size_t begin = 0; begin < ops.size();) {
    const size_t end = std::min(ops.find(',', begin), ops.size());
    STANDIN_CHECK(add_kernel(ops.substr(begin, end - begin).c_str(), onnxfuse::kMemoryDefault,
                             onnxfuse::kMemoryDefault, no_kernel));
    begin = end + 1;
  }
  return nullptr;
}

// Every node that some kernel is registered for, as the real provider does.
OrtStatus* take_nodes(OrtEp*, const OrtGraph* graph, OrtEpGraphSupportInfo* taken) noexcept {
  size_t count = 0;
  STANDIN_CHECK(api->Graph_GetNumNodes(graph, &count));
  std::vector<const OrtNode*> nodes(count);
  STANDIN_CHECK(api->Graph_GetNodes(graph, nodes.data(), count));
  for (const OrtNode* node : nodes) {
    const OrtKernelDef* definition = nullptr;
    STANDIN_CHECK(api->EpGraphSupportInfo_LookUpKernel(taken, node, &definition));
    if (definition != nullptr) STANDIN_CHECK(api->EpGraphSupportInfo_AddSingleNode(taken, node));
  }
  return nullptr;
}

OrtStatus* create_provider(OrtEpFactory*, const OrtHardwareDevice* const*, const OrtKeyValuePairs* const*, size_t,
                           const OrtSessionOptions*, const OrtLogger*, OrtEp** out) noexcept {
  in_run = false;  // of a run that failed before it began the runtime does not tell the end
  auto* const provider = new OrtEp{};
  provider->version = kApiVersion;
  provider->GetName = [](const OrtEp*) { return kProvider; };
  provider->GetCapability = take_nodes;
  provider->OnRunStart = [](OrtEp*, const OrtRunOptions*) -> OrtStatus* {
    in_run = true;
    return nullptr;
  };
  provider->OnRunEnd = [](OrtEp*, const OrtRunOptions*, bool) -> OrtStatus* {
    in_run = false;
    return nullptr;
  };
  provider->GetKernelRegistry = [](OrtEp*, const OrtKernelRegistry** found) -> OrtStatus* {
    *found = registry;
    return nullptr;
  };
  *out = provider;
  return nullptr;
}

// Everything happens at once here: nobody has to wait for anybody.
OrtStatus* create_notification(OrtSyncStreamImpl*, OrtSyncNotificationImpl** out) noexcept {
  auto* const made = new OrtSyncNotificationImpl{};
  made->version = kApiVersion;
  made->Release = [](OrtSyncNotificationImpl* self) { delete self; };
  made->Activate = [](OrtSyncNotificationImpl*) -> OrtStatus* { return nullptr; };
  made->WaitOnDevice = [](OrtSyncNotificationImpl*, OrtSyncStream*) -> OrtStatus* { return nullptr; };
  made->WaitOnHost = made->Activate;
  *out = made;
  return nullptr;
}

OrtStatus* create_stream(OrtEpFactory*, const OrtMemoryDevice*, const OrtKeyValuePairs*,
                         OrtSyncStreamImpl** out) noexcept {
  auto* const stream = new OrtSyncStreamImpl{};
  stream->version = kApiVersion;
  stream->Release = [](OrtSyncStreamImpl* self) {
    const std::lock_guard<std::mutex> lock(streams().mutex);
    streams().alive.erase(self);
    delete self;
  };
  stream->GetHandle = [](OrtSyncStreamImpl* self) -> void* { return self; };
  stream->CreateNotification = create_notification;
  stream->Flush = [](OrtSyncStreamImpl*) -> OrtStatus* { return nullptr; };
  stream->OnSessionRunEnd = stream->Flush;
  const std::lock_guard<std::mutex> lock(streams().mutex);
  streams().alive.insert(stream);
  *out = stream;
  return nullptr;
}

OrtStatus* create_allocator(OrtEpFactory*, const OrtMemoryInfo*, const OrtKeyValuePairs*, OrtAllocator** out) noexcept {
  auto* const allocator = new OrtAllocator{};
  allocator->version = kApiVersion;
  allocator->Alloc = [](OrtAllocator*, size_t bytes) { return memory().allocate(bytes); };
  allocator->Free = [](OrtAllocator*, void* address) { memory().free(address); };
  allocator->Info = [](const OrtAllocator*) -> const OrtMemoryInfo* { return memory_info; };
  *out = allocator;
  return nullptr;
}

OrtStatus* create_transfer(OrtEpFactory*, OrtDataTransferImpl** out) noexcept {
  auto* const transfer = new OrtDataTransferImpl{};
  transfer->version = kApiVersion;
  transfer->Release = [](OrtDataTransferImpl* self) { delete self; };
  transfer->CanCopy = [](const OrtDataTransferImpl*, const OrtMemoryDevice*, const OrtMemoryDevice*) { return true; };
  transfer->CopyTensors = [](OrtDataTransferImpl*, const OrtValue** from, OrtValue** to, OrtSyncStream**,
                             size_t count) -> OrtStatus* {
    for (size_t k = 0; k < count; ++k) STANDIN_CHECK(copy(from[k], to[k]));
    return nullptr;
  };
  *out = transfer;
  return nullptr;
}

// Of the hardware that the runtime finds, one processor plays the GPU.
OrtStatus* find_devices(OrtEpFactory* factory, const OrtHardwareDevice* const* devices, size_t count, OrtEpDevice** out,
                        size_t, size_t* out_count) noexcept {
  *out_count = 0;
  for (size_t k = 0; k < count; ++k) {
    if (api->HardwareDevice_Type(devices[k]) != kHardwareCpu) continue;
    STANDIN_CHECK(api->CreateEpDevice(factory, devices[k], nullptr, nullptr, out));
    STANDIN_CHECK(api->EpDevice_AddAllocatorInfo(*out, memory_info));
    *out_count = 1;
    break;
  }
  return nullptr;
}

}  // namespace
}  // namespace standin

STANDIN_EXPORT void* standin_host_address(const void* address, size_t bytes) {
  return standin::memory().host_address(address, bytes);
}

STANDIN_EXPORT bool standin_is_stream(const void* handle) {
  const std::lock_guard<std::mutex> lock(standin::streams().mutex);
  return standin::streams().alive.count(handle) != 0;
}

STANDIN_EXPORT bool standin_in_run() { return standin::in_run; }

STANDIN_EXPORT OrtStatus* CreateEpFactories(const char*, const OrtApiBase* base, const OrtLogger*, OrtEpFactory** out,
                                            size_t, size_t* count) {
  using namespace standin;
  api = new Api(base->GetApi(kApiVersion));
  // No alignment is announced: devices that a caller names ("cuda") have none, and would be others.
  STANDIN_CHECK(api->CreateMemoryInfo_V2("Cuda", kDeviceGpu, kVendor, 0, kDeviceMemory, 0, kAllocator, &memory_info));
  STANDIN_CHECK(make_registry());
  auto* const factory = new OrtEpFactory{};
  factory->version = kApiVersion;
  factory->GetName = [](const OrtEpFactory*) { return kProvider; };
  factory->GetVendor = [](const OrtEpFactory*) { return "stand-in"; };
  factory->GetVendorId = [](const OrtEpFactory*) { return kVendor; };
  factory->GetVersion = [](const OrtEpFactory*) { return "1.0.0"; };
  factory->GetSupportedDevices = find_devices;
  factory->CreateEp = create_provider;
  factory->ReleaseEp = [](OrtEpFactory*, OrtEp* provider) { delete provider; };
  factory->CreateAllocator = create_allocator;
  factory->ReleaseAllocator = [](OrtEpFactory*, OrtAllocator* allocator) { delete allocator; };
  factory->CreateDataTransfer = create_transfer;
  factory->IsStreamAware = [](const OrtEpFactory*) { return true; };
  factory->CreateSyncStreamForDevice = create_stream;
  *out = factory;
  *count = 1;
  return nullptr;
}

STANDIN_EXPORT OrtStatus* ReleaseEpFactory(OrtEpFactory* factory) {
  delete factory;
  return nullptr;
}
