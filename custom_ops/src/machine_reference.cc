// Stand-in until the machine of src/cpu is there: float32 only, one element at a time.
#include <cmath>
#include <cstring>
#include <stdexcept>
#include "machine.h"
namespace onnxfuse {
namespace {
class Reference final : public Machine {
 public:
  explicit Reference(const Program& p) : p_(p) {
    for (auto& i : p.inputs) if (i.dtype != DType::k_f32) throw std::runtime_error("reference: f32 only");
  }
  size_t frame_bytes() const noexcept override { return (p_.inputs.size() + p_.statements.size()) * 4; }
  size_t tile() const noexcept override { return 64; }
  double cost() const noexcept override { return 1; }
  void run(const void* const* in, const uint8_t* step, void* const* out, size_t n, void* frame) const noexcept override {
    float* v = static_cast<float*>(frame);
    const size_t ni = p_.inputs.size();
    for (size_t e = 0; e < n; ++e) {
      for (size_t k = 0; k < ni; ++k) v[k] = static_cast<const float*>(in[k])[step[k] ? e : 0];
      for (size_t s = 0; s < p_.statements.size(); ++s) {
        const Stmt& t = p_.statements[s];
        float a = v[t.operands[0]], b = v[t.operands[1]], r = 0;
        switch (t.op) {
          case Opcode::k_add: r = a + b; break;
          case Opcode::k_sub: r = a - b; break;
          case Opcode::k_mul: r = a * b; break;
          case Opcode::k_div: r = a / b; break;
          case Opcode::k_sigmoid: r = 1 / (1 + std::exp(-a)); break;
          case Opcode::k_const: { auto x = static_cast<uint32_t>(t.bits); std::memcpy(&r, &x, 4); break; }
          default: r = NAN;
        }
        v[ni + s] = r;
      }
      for (size_t k = 0; k < p_.outputs.size(); ++k) static_cast<float*>(out[k])[e] = v[p_.outputs[k]];
    }
  }
  Program p_;
};
}
std::unique_ptr<const Machine> Machine::build(const Program& p, const DType*, const DType*, Isa) { return std::make_unique<Reference>(p); }
}
