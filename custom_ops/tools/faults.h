// Runs something that may touch memory it must not (pages without access, as tests/custom_ops/guarded.py makes them),
// and says so instead of dying.
#pragma once

#include <csetjmp>
#include <csignal>

namespace onnxfuse::faults {

inline thread_local sigjmp_buf* back = nullptr;

inline void handle(int signal) {
  if (back != nullptr) siglongjmp(*back, 1);
  std::signal(signal, SIG_DFL);  // not ours: the same instruction faults again
}

// Catches faults of every thread that is within `survives`, as long as it lives.
class Watch {
 public:
  Watch() {
    struct sigaction action = {};
    action.sa_handler = handle;
    sigaction(SIGSEGV, &action, &segv_);
    sigaction(SIGBUS, &action, &bus_);
  }
  ~Watch() {
    sigaction(SIGSEGV, &segv_, nullptr);
    sigaction(SIGBUS, &bus_, nullptr);
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  struct sigaction segv_, bus_;
};

// Whether body() ends without a fault; what it had in hand after one is lost. Needs a Watch.
template <class Body>
bool survives(Body body) {
  sigjmp_buf here;
  if (sigsetjmp(here, 1) != 0) {
    back = nullptr;
    return false;
  }
  back = &here;
  body();
  back = nullptr;
  return true;
}

}  // namespace onnxfuse::faults
