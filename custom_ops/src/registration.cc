// RegisterCustomOps: the one symbol that the library exports. ONNX Runtime calls it with the options of a session.
//
// Operators are made once for each runtime (two copies of ONNX Runtime may live in one process) and never freed: a
// session may end after our static objects are gone.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>

#include "cuda/ort_kernel.h"
#include "inference.h"
#include "ort_api.h"
#include "ort_kernel.h"
#include "ort_node.h"
#include "ort_support.h"

#define ONNXFUSE_EXPORT extern "C" __attribute__((visibility("default")))

namespace onnxfuse {
namespace {

constexpr const char* kDomain = "onnxfuse";
constexpr const char* kNamesKey = "onnxfuse.names";    // session config, e.g. "FusedElementwise:200"
constexpr const char* kDeviceKey = "onnxfuse.device";  // session config: "cpu" or "cuda"

// Two families of names. What pays on a GPU only is called FusedDevice and registered where a session asks for it:
// elsewhere such a node runs as the plain operators of its body, and so does one whose number is not registered. A
// registered name costs each session 0.1 to 0.2 ms; no model of the corpus has more than 10 distinct bodies.
enum Family { kEverywhere, kGpuAlone, kFamilies };
constexpr const char* kFamily[kFamilies] = {"FusedElementwise", "FusedDevice"};
using Counts = std::array<size_t, kFamilies>;  // names of each
constexpr size_t kDefaultNames = 16;
constexpr size_t kMostNames = 4096;

// Pairs of an input (from x0) and an output that may share memory; a longer map makes registration slower.
constexpr int kInplaceInputs = 8, kInplaceOutputs = 1;

struct InplaceMap {
  int inputs[kInplaceInputs * kInplaceOutputs];
  int outputs[kInplaceInputs * kInplaceOutputs];
  constexpr InplaceMap() : inputs(), outputs() {
    for (int o = 0; o < kInplaceOutputs; ++o)
      for (int i = 0; i < kInplaceInputs; ++i) {
        inputs[o * kInplaceInputs + i] = i + 1;
        outputs[o * kInplaceInputs + i] = o;
      }
  }
};

InplaceMap& inplace_map() {
  static InplaceMap map;  // no destructor runs
  return map;
}

enum class On { kCpu, kCuda };

struct Operator : OrtCustomOp {
  Operator(const Ort& runtime, std::string op_name, On on);
  const Ort& ort;
  std::string op_name;
};

const Operator& self(const OrtCustomOp* op) noexcept { return *static_cast<const Operator*>(op); }

template <typename K>
OrtStatus* create_kernel(const OrtCustomOp* op, const OrtApi*, const OrtKernelInfo* node, void** kernel) noexcept {
  const Ort& ort = self(op).ort;
  const auto where = [&] { return describe(ort, node, self(op).op_name); };
  return guarded(ort, where, [&] { *kernel = new K(ort, node, where()); });
}

template <typename K>
void run_with(OrtCustomOp& op) noexcept {
  op.CreateKernelV2 = create_kernel<K>;
  op.KernelComputeV2 = [](void* kernel, OrtKernelContext* context) noexcept {
    return static_cast<const K*>(kernel)->compute(context);
  };
  op.KernelDestroy = [](void* kernel) noexcept { delete static_cast<K*>(kernel); };
}

Operator::Operator(const Ort& runtime, std::string name_, On on)
    : OrtCustomOp{}, ort(runtime), op_name(std::move(name_)) {
  version = kOrtApiVersion;
  GetName = [](const OrtCustomOp* op) noexcept { return self(op).op_name.c_str(); };
  if (on == On::kCpu) {
    GetExecutionProviderType = [](const OrtCustomOp*) noexcept -> const char* { return nullptr; };
    run_with<Kernel>(*this);
  } else {
    GetExecutionProviderType = [](const OrtCustomOp*) noexcept { return "CUDAExecutionProvider"; };
    run_with<cuda::Kernel>(*this);
  }
  GetInputTypeCount = [](const OrtCustomOp*) noexcept -> size_t { return 2; };
  GetInputType = [](const OrtCustomOp*, size_t i) noexcept -> int { return i == 0 ? kElementU8 : kElementUndefined; };
  GetInputCharacteristic = [](const OrtCustomOp*, size_t i) noexcept {
    return i == 0 ? kInputRequired : kInputVariadic;
  };
  GetInputMemoryType = [](const OrtCustomOp*, size_t i) noexcept { return i == 0 ? kMemoryCpuInput : kMemoryDefault; };
  GetVariadicInputMinArity = [](const OrtCustomOp*) noexcept { return 1; };
  GetVariadicInputHomogeneity = [](const OrtCustomOp*) noexcept { return 0; };
  GetOutputTypeCount = [](const OrtCustomOp*) noexcept -> size_t { return 1; };
  GetOutputType = [](const OrtCustomOp*, size_t) noexcept -> int { return kElementUndefined; };
  GetOutputCharacteristic = [](const OrtCustomOp*, size_t) noexcept { return kInputVariadic; };
  GetVariadicOutputMinArity = [](const OrtCustomOp*) noexcept { return 1; };
  GetVariadicOutputHomogeneity = [](const OrtCustomOp*) noexcept { return 0; };
  GetStartVersion = [](const OrtCustomOp*) noexcept { return 1; };
  GetEndVersion = [](const OrtCustomOp*) noexcept { return 1; };
  InferOutputShapeFn = [](const OrtCustomOp* op, OrtShapeInferContext* context) noexcept {
    return guarded(self(op).ort, [&] { return self(op).op_name; }, [&] { infer_outputs(self(op).ort, context); });
  };
  GetMayInplace = [](int** inputs, int** outputs) noexcept -> size_t {
    *inputs = inplace_map().inputs;
    *outputs = inplace_map().outputs;
    return kInplaceInputs * kInplaceOutputs;
  };
  ReleaseMayInplace = [](int*, int*) noexcept {};
}

// What is made for one runtime.
class Registry {
 public:
  Registry(const OrtApi* api, bool has_24) : ort(api, has_24) {}

  // The domain with the first names of each family.
  OrtCustomOpDomain* domain(const Counts& counts) {
    const std::lock_guard<std::mutex> lock(mutex_);
    OrtCustomOpDomain*& domain = domains_[counts];
    if (domain != nullptr) return domain;
    OrtCustomOpDomain* made = nullptr;
    check(ort, ort.CreateCustomOpDomain(kDomain, &made));
    for (size_t family = 0; family < kFamilies; ++family) {
      std::deque<Operator>& operators = operators_[family];
      while (operators.size() < 2 * counts[family]) {
        const std::string name = kFamily[family] + std::to_string(operators.size() / 2 + 1);
        operators.emplace_back(ort, name, On::kCpu);  // without it, sessions on the CPU would fail, not inline
        operators.emplace_back(ort, name, On::kCuda);  // costs nothing where the session has no such provider
      }
      for (size_t i = 0; i < 2 * counts[family]; ++i) check(ort, ort.CustomOpDomain_Add(made, &operators[i]));
    }
    return domain = made;
  }

  const Ort ort;

 private:
  std::mutex mutex_;
  std::array<std::deque<Operator>, kFamilies> operators_;
  std::map<Counts, OrtCustomOpDomain*> domains_;
};

Registry& registry(const OrtApi* api, bool has_24) {
  static std::mutex mutex;
  static auto& all = *new std::map<const OrtApi*, Registry*>;
  const std::lock_guard<std::mutex> lock(mutex);
  Registry*& found = all[api];
  if (found == nullptr) found = new Registry(api, has_24);
  return *found;
}

// "Family:count,Family:count" over the defaults in `counts`. Other families are those of other versions.
void read_names(const std::string& text, Counts& counts) {
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t colon = item.find(':');
    const std::string digits = colon == std::string::npos ? "" : item.substr(colon + 1);
    const bool number =
        !digits.empty() && digits.size() <= 5 && digits.find_first_not_of("0123456789") == std::string::npos;
    const size_t value = number ? std::stoul(digits) : 0;
    if (!number || value > kMostNames)
      throw std::invalid_argument(std::string("session config ") + kNamesKey + " is '" + text +
                                  "'; expected such as 'FusedElementwise:200', at most " + std::to_string(kMostNames));
    for (size_t family = 0; family < kFamilies; ++family)
      if (item.compare(0, colon, kFamily[family]) == 0) counts[family] = value;
  }
}

// An entry of the session's config; false where it has none.
bool config(const Ort& ort, const OrtSessionOptions* options, const char* key, std::string& value) {
  int has = 0;
  check(ort, ort.HasSessionConfigEntry(options, key, &has));
  if (has == 0) return false;
  size_t size = 0;
  if (OrtStatus* status = ort.GetSessionConfigEntry(options, key, nullptr, &size)) ort.ReleaseStatus(status);
  value.assign(size, '\0');
  check(ort, ort.GetSessionConfigEntry(options, key, value.data(), &size));
  value.resize(std::strlen(value.c_str()));
  return true;
}

// The number of names of each family that the session asks for.
Counts wanted_names(const Ort& ort, const OrtSessionOptions* options) {
  Counts counts{kDefaultNames, kDefaultNames};
  std::string text;
  if (config(ort, options, kNamesKey, text)) read_names(text, counts);
  const bool named = config(ort, options, kDeviceKey, text);
  if (named && text != "cpu" && text != "cuda")
    throw std::invalid_argument(std::string("session config ") + kDeviceKey + " is '" + text +
                                "'; expected 'cpu' or 'cuda'");
  if (!named || text == "cpu") counts[kGpuAlone] = 0;
  return counts;
}

// Minor version of a runtime "1.MINOR.PATCH"; a later major counts as new.
long minor_version(const char* version) noexcept {
  char* end = nullptr;
  const long major = std::strtol(version, &end, 10);
  return major > 1 || *end != '.' ? 1000 : std::strtol(end + 1, nullptr, 10);
}

}  // namespace
}  // namespace onnxfuse

ONNXFUSE_EXPORT OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) noexcept {
  using namespace onnxfuse;
  const char* version = base->GetVersionString();
  const long minor = minor_version(version);
  if (minor < static_cast<long>(kOrtApiVersion)) {
    // Ask for no more than it has: it would print a line of its own. The first entry has always been CreateStatus.
    const OrtApi* old = base->GetApi(1);
    if (old == nullptr) return nullptr;
    const auto create = reinterpret_cast<OrtStatus* (*const*)(int, const char*)>(old)[0];
    return create(kOrtFail, "onnxfuse: the library needs ONNX Runtime 1.18 or later");
  }
  const bool has_24 = minor >= 24;
  const OrtApi* api = base->GetApi(has_24 ? 24 : kOrtApiVersion);
  if (api == nullptr) return nullptr;
  const Ort bare(api, has_24);  // to report with, should the registry fail
  return guarded(bare, [] { return std::string("RegisterCustomOps"); }, [&] {
    Registry& mine = registry(api, has_24);
    check(mine.ort, mine.ort.AddCustomOpDomain(options, mine.domain(wanted_names(mine.ort, options))));
  });
}
