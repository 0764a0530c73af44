// A library of custom ops for ONNX Runtime that registers those of another one (its path in ONNXFUSE_PROBED) and looks,
// after every call into them, whether they left the upper halves of vector registers in use: after a kernel's run, and
// after every piece of work that it gave to the runtime's threads. tests/custom_ops/test_upper_halves.py reads the
// counts.
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "ort_api.h"
#include "upper_halves.h"

#define ONNXFUSE_EXPORT extern "C" __attribute__((visibility("default")))

namespace onnxfuse {
namespace {

using Function = void (*)();
using Register = OrtStatus* (*)(OrtSessionOptions*, const OrtApiBase*);
using Compute = OrtStatus* (*)(void* kernel, OrtKernelContext*);
using Work = void (*)(void* user, size_t index);

constexpr size_t kAdd = 27, kParallel = 274;  // positions in the table
constexpr size_t kOld = 279, kNew = 415;    // entries that the library may read

std::atomic<unsigned long> runs{0}, works{0}, soiled{0};
const OrtApiBase* runtime = nullptr;
Function table[kNew];  // the runtime's, but for two functions
Ort* original = nullptr;
Compute compute = nullptr;

void look() noexcept { soiled += upper_halves::in_use(); }

OrtStatus* watched_run(void* kernel, OrtKernelContext* context) noexcept {
  upper_halves::clear();
  OrtStatus* status = compute(kernel, context);
  look();
  ++runs;
  return status;
}

OrtStatus* add(OrtCustomOpDomain* domain, const OrtCustomOp* op) {
  if (op->GetExecutionProviderType(op) == nullptr) {  // those of the CPU
    compute = op->KernelComputeV2 == watched_run ? compute : op->KernelComputeV2;
    const_cast<OrtCustomOp*>(op)->KernelComputeV2 = watched_run;
  }
  return original->CustomOpDomain_Add(domain, op);
}

OrtStatus* parallel(const OrtKernelContext* context, Work work, size_t total, size_t batches, void* user) {
  struct Inner {
    Work work;
    void* user;
  } inner = {work, user};
  const Work watched = [](void* p, size_t index) {
    const auto& it = *static_cast<const Inner*>(p);
    upper_halves::clear();
    it.work(it.user, index);
    look();
    ++works;
  };
  return original->KernelContext_ParallelFor(context, watched, total, batches, &inner);
}

const OrtApi* watched_api(uint32_t version) {
  const OrtApi* api = runtime->GetApi(version);
  if (api == nullptr) return nullptr;
  std::memcpy(table, api, (version >= 24 ? kNew : kOld) * sizeof(Function));
  static Ort functions(api, version >= 24);
  original = &functions;
  table[kAdd] = reinterpret_cast<Function>(add);
  table[kParallel] = reinterpret_cast<Function>(parallel);
  return reinterpret_cast<const OrtApi*>(table);
}

}  // namespace
}  // namespace onnxfuse

ONNXFUSE_EXPORT OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  using namespace onnxfuse;
  const char* path = std::getenv("ONNXFUSE_PROBED");
  void* library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const auto theirs = library == nullptr ? nullptr : reinterpret_cast<Register>(dlsym(library, "RegisterCustomOps"));
  if (theirs == nullptr) return Ort(base->GetApi(kOrtApiVersion), false).CreateStatus(kOrtFail, "ONNXFUSE_PROBED");
  runtime = base;
  static const OrtApiBase watched = {watched_api, base->GetVersionString};
  return theirs(options, &watched);
}

// Kernels run, pieces of work run on threads, and how many of both left the upper halves in use; since the last call.
ONNXFUSE_EXPORT void upper_halves_counts(unsigned long counts[3]) {
  using namespace onnxfuse;
  counts[0] = runs.exchange(0);
  counts[1] = works.exchange(0);
  counts[2] = soiled.exchange(0);
}

// Whether the probe sees what it should see.
ONNXFUSE_EXPORT int upper_halves_seen() {
  using namespace onnxfuse;
  upper_halves::clear();
  if (upper_halves::in_use()) return 0;
  upper_halves::soil();
  const bool seen = upper_halves::in_use();
  upper_halves::clear();
  return seen;
}
