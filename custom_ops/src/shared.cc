#include "shared.h"

#include <array>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

namespace onnxfuse {
namespace {

constexpr size_t kKept = 16;            // programs
constexpr size_t kLongestKept = 4096;   // bytes of their texts: 16 programs of such take some 250 KB

// Never freed, like everything that is made once for a process: a session may end after static objects are gone.
class Programs {
 public:
  std::shared_ptr<const Program> find(std::string_view text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Entry& entry : entries_)
      if (entry.text == text) return entry.program;
    return nullptr;
  }

  void keep(std::string_view text, const std::shared_ptr<const Program>& program) {
    if (text.size() > kLongestKept) return;
    Entry entry{std::string(text), program};
    const std::lock_guard<std::mutex> lock(mutex_);
    std::swap(entries_[next_], entry);
    next_ = (next_ + 1) % kKept;
  }

 private:
  struct Entry {
    std::string text;
    std::shared_ptr<const Program> program;
  };

  std::mutex mutex_;
  std::array<Entry, kKept> entries_;
  size_t next_ = 0;  // to be replaced
};

Programs& programs() {
  static auto& all = *new Programs;
  return all;
}

struct Shared;

struct Executables {
  std::mutex mutex;
  std::unordered_map<std::string_view, std::weak_ptr<const Shared>> all;  // the key is the one of the Shared

  std::shared_ptr<const Shared> find(std::string_view key) {  // under the lock
    const auto found = all.find(key);
    return found == all.end() ? nullptr : found->second.lock();
  }
};

Executables& executables() {
  static auto& all = *new Executables;
  return all;
}

// An executable that is taken off the list when the last kernel is done with it.
struct Shared {
  Shared(std::string key_, const Program& program, const DType* input_storage, const DType* output_storage,
         const uint64_t* scalars, Isa isa)
      : key(std::move(key_)), exe(program, input_storage, output_storage, scalars, isa) {}
  ~Shared() {
    Executables& list = executables();
    const std::lock_guard<std::mutex> lock(list.mutex);
    const auto found = list.all.find(key);
    if (found != list.all.end() && found->first.data() == key.data()) list.all.erase(found);
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  const std::string key;
  const Executable exe;
};

// The text comes last. Where two keys agree, the texts do: each of them has its first line once, so that none ends with
// another. And then what stands before them has the same length and meaning.
std::string key_of(std::string_view text, const Program& program, const DType* input_storage,
                   const DType* output_storage, const uint64_t* scalars, Isa isa) {
  const size_t scalar_bytes = program.scalar_count() * sizeof *scalars;
  std::string key;
  key.reserve(1 + program.inputs.size() + program.outputs.size() + scalar_bytes + text.size());
  key += static_cast<char>(isa);
  key.append(reinterpret_cast<const char*>(input_storage), program.inputs.size());
  key.append(reinterpret_cast<const char*>(output_storage), program.outputs.size());
  key.append(reinterpret_cast<const char*>(scalars), scalar_bytes);
  return key.append(text);
}

}  // namespace

std::shared_ptr<const Program> shared_program(std::string_view text) {
  std::shared_ptr<const Program> program = programs().find(text);
  if (program) return program;
  program = std::make_shared<const Program>(parse_program(text));
  programs().keep(text, program);
  return program;
}

std::shared_ptr<const Executable> shared_executable(std::string_view text, const Program& program,
                                                    const DType* input_storage, const DType* output_storage,
                                                    const uint64_t* scalars) {
  const Isa isa = pick_isa(Isa::kBest);
  std::string key = key_of(text, program, input_storage, output_storage, scalars, isa);
  Executables& list = executables();
  std::shared_ptr<const Shared> shared;
  {
    const std::lock_guard<std::mutex> lock(list.mutex);
    shared = list.find(key);
  }
  if (!shared) {
    // Made outside the lock, which others wait for; the one that is made first counts.
    const auto made =
        std::make_shared<const Shared>(std::move(key), program, input_storage, output_storage, scalars, isa);
    const std::lock_guard<std::mutex> lock(list.mutex);
    shared = list.find(made->key);
    if (!shared) {
      list.all.erase(made->key);  // of one that is going
      list.all.emplace(made->key, made);
      shared = made;
    }
  }
  return {shared, &shared->exe};
}

}  // namespace onnxfuse
