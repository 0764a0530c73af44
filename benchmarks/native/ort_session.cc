#include <atomic>
#include <memory>
#include <stdexcept>
#include <vector>

#include "ort_session_api.h"
#include "ort_support.h"
#include "subjects.h"

namespace onnxfuse::bench {
namespace {

std::atomic<const OrtApi*> runtime{nullptr};

template <typename T>
using Owner = std::unique_ptr<T, void (*)(T*)>;

class OrtLoop final : public Repeated {
 public:
  OrtLoop(const OrtApi* api, const void* model, size_t bytes, const SessionOptions& options)
      : ort_(api, false), api_(api) {
    OrtEnv* env = nullptr;  // the runtime has one and counts who uses it
    call(api_.CreateEnv(kOrtWarning, "onnxfuse-bench", &env));
    env_ = {env, api_.ReleaseEnv};
    const Owner<OrtSessionOptions> made = make_options(options);
    OrtSession* session = nullptr;
    call(api_.CreateSessionFromArray(env, model, bytes, made.get(), &session));
    session_ = {session, api_.ReleaseSession};
    OrtIoBinding* binding = nullptr;
    call(api_.CreateIoBinding(session, &binding));
    binding_ = {binding, api_.ReleaseIoBinding};
    OrtMemoryInfo* memory = nullptr;
    call(api_.CreateCpuMemoryInfo(kOrtArenaAllocator, kOrtMemoryTypeCpu, &memory));
    memory_ = {memory, api_.ReleaseMemoryInfo};
  }

  void bind_input(const Binding& b) { call(api_.BindInput(binding_.get(), b.name, value(b))); }
  void bind_output(const Binding& b) { call(api_.BindOutput(binding_.get(), b.name, value(b))); }

  void run(size_t repeat) override {
    for (size_t i = 0; i < repeat; ++i)
      if (OrtStatus* status = api_.RunWithBinding(session_.get(), nullptr, binding_.get())) call(status);
  }

 private:
  void call(OrtStatus* status) const { check(ort_, status); }

  Owner<OrtSessionOptions> make_options(const SessionOptions& options) {
    OrtSessionOptions* made = nullptr;
    call(api_.CreateSessionOptions(&made));
    Owner<OrtSessionOptions> owner(made, api_.ReleaseSessionOptions);
    call(api_.SetIntraOpNumThreads(made, options.threads));
    call(api_.SetInterOpNumThreads(made, 1));
    call(api_.SetSessionGraphOptimizationLevel(made, options.optimization_level));
    for (size_t i = 0; i < options.config_entries; ++i)
      call(api_.AddSessionConfigEntry(made, options.config[2 * i], options.config[2 * i + 1]));
    if (options.library != nullptr) call(api_.RegisterCustomOpsLibrary_V2(made, options.library));
    return owner;
  }

  const OrtValue* value(const Binding& b) {
    OrtValue* made = nullptr;
    call(api_.CreateTensorWithDataAsOrtValue(memory_.get(), b.data, b.bytes, b.dims, b.rank, b.type, &made));
    values_.emplace_back(made, ort_.ReleaseValue);
    return made;
  }

  const Ort ort_;
  const OrtSessionApi api_;
  // Released from the last to the first.
  Owner<OrtEnv> env_{nullptr, nullptr};
  Owner<OrtMemoryInfo> memory_{nullptr, nullptr};
  Owner<OrtSession> session_{nullptr, nullptr};
  std::vector<Owner<OrtValue>> values_;
  Owner<OrtIoBinding> binding_{nullptr, nullptr};
};

}  // namespace

bool has_runtime() noexcept { return runtime.load() != nullptr; }

std::unique_ptr<Repeated> ort_session(const void* model, size_t model_bytes, const SessionOptions& options,
                                      const Binding* in, size_t inputs, const Binding* out, size_t outputs) {
  if (!has_runtime()) throw std::logic_error("no runtime has registered this library");
  auto loop = std::make_unique<OrtLoop>(runtime.load(), model, model_bytes, options);
  for (size_t k = 0; k < inputs; ++k) loop->bind_input(in[k]);
  for (size_t k = 0; k < outputs; ++k) loop->bind_output(out[k]);
  loop->run(1);
  return loop;
}

}  // namespace onnxfuse::bench

// Called by the runtime that Python has loaded: this is how the bench finds its functions, which not every build of
// the runtime exports. Registers nothing.
extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions*,
                                                                               const OrtApiBase* base) {
  onnxfuse::bench::runtime = base->GetApi(onnxfuse::kOrtApiVersion);
  return nullptr;
}
