// A plain mutation loop where libFuzzer is not at hand: onnxfuse_fuzz_program [SECONDS [SEED]]. Most programs it makes
// are nearly right: words are exchanged for other words of the language, lines are doubled, dropped and swapped.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "program.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace onnxfuse {
namespace {

using Line = std::vector<std::string>;
using Random = std::mt19937_64;

const std::string& pick(const std::vector<std::string>& words, Random& random) {
  return words[random() % words.size()];
}

size_t below(size_t n, Random& random) { return n == 0 ? 0 : random() % n; }

std::string number(size_t n) { return std::to_string(n); }

// A word of the language with the given number of values already there, or nearly one.
std::string word(size_t statements, Random& random) {
  static const std::vector<std::string> odd = {"", " ", "in", "out", "=", "pad", "x", "t", "c0", "x64", "t4096", "0x",
                                               "0xzz", "-1", "99999", "4294967296", "\xff", "const.bool", "f32"};
  const auto type = [&] { return std::string(name(static_cast<DType>(random() % kDTypes))); };
  switch (random() % 8) {
    case 0: return pick(odd, random);
    case 1: return "x" + number(below(4, random));
    case 2: return "t" + number(below(statements + 1, random));
    case 3: return type();
    case 4: return std::string(info(static_cast<Opcode>(random() % kOpcodes)).name) + "." + type();
    case 5: return std::string(info(static_cast<Opcode>(random() % kOpcodes)).name) + "." + type() + "." + type();
    case 6: return "0x" + std::string(2 << (random() % 4), "0123456789abcdef"[random() % 16]);
    default: return "c" + number(below(3, random));
  }
}

// A right program: a random statement on values of the types that it takes.
std::vector<Line> make(Random& random) {
  std::vector<Line> lines = {{"onnxfuse", "1"}};
  std::vector<std::pair<std::string, DType>> values;
  const auto input = [&](const std::string& who) {
    const auto type = static_cast<DType>(random() % kDTypes);
    lines.push_back({"in", who, name(type)});
    values.emplace_back(who, type);
  };
  const size_t tensors = 1 + random() % 5, scalars = random() % 3, statements = random() % 60;
  for (size_t k = 0; k < tensors; ++k) input("x" + number(k));
  for (size_t k = 0; k < scalars; ++k) input("c" + number(k));
  for (size_t made = 0, tries = 0; made < statements && tries < 4000; ++tries) {
    const auto op = static_cast<Opcode>(random() % kOpcodes);
    const OpcodeInfo& row = info(op);
    const DType first = values[random() % values.size()].second, other = static_cast<DType>(random() % kDTypes);
    const auto takes = [&](DType t) { return (row.type_mask >> static_cast<unsigned>(t) & 1) != 0; };
    DType from = first, to = first;
    if (row.form == Form::k_cast) to = other;
    if (row.form == Form::k_compare) to = DType::k_bool;
    if (row.form == Form::k_select) from = DType::k_bool;
    if (row.form == Form::k_const) from = to = other;
    if (!takes(row.form == Form::k_select ? to : from) || (row.form == Form::k_cast && !takes(to))) continue;
    std::string opcode = std::string(row.name) + "." + name(from);
    if (row.form != Form::k_same && row.form != Form::k_const) opcode += std::string(".") + name(to);
    Line line = {"t" + number(made), "=", opcode};
    for (unsigned i = 0; i < row.arity; ++i) {
      const DType want = row.form == Form::k_select && i > 0 ? to : from;
      std::vector<std::string> fitting;
      for (const auto& [who, type] : values)
        if (type == want) fitting.push_back(who);
      if (fitting.empty()) break;
      line.push_back(pick(fitting, random));
    }
    if (line.size() != 3u + row.arity) continue;
    if (row.form == Form::k_const) {
      std::string bits = "0x";
      for (size_t i = 0; i < 2 * size_of(to); ++i) bits += "0123456789abcdef"[random() % 16];
      line.push_back(to == DType::k_bool ? "0x01" : bits);
    }
    lines.push_back(line);
    values.emplace_back(line[0], to);
    ++made;
  }
  const size_t outputs = 1 + random() % 4;
  for (size_t k = 0; k < outputs; ++k)
    lines.push_back({"out", values[values.size() - 1 - below(values.size(), random) / 2].first});
  return lines;
}

void mutate(std::vector<Line>& lines, Random& random) {
  const size_t at = below(lines.size(), random), to = below(lines.size(), random);
  switch (random() % 7) {
    case 0: lines.insert(lines.begin() + static_cast<ptrdiff_t>(at), lines[to]); break;
    case 1: lines.erase(lines.begin() + static_cast<ptrdiff_t>(at)); break;
    case 2: std::swap(lines[at], lines[to]); break;
    default:
      if (lines[at].empty()) return;
      lines[at][below(lines[at].size(), random)] = word(lines.size(), random);
  }
}

std::string text_of(const std::vector<Line>& lines) {
  std::string text;
  for (const Line& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) text += (i ? " " : "") + line[i];
    text += '\n';
  }
  return text;
}

}  // namespace
}  // namespace onnxfuse

int main(int argc, char** argv) {
  using namespace onnxfuse;
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10;
  Random random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto begin = now();
  size_t tried = 0, accepted = 0;
  while (std::chrono::duration<double>(now() - begin).count() < seconds) {
    std::vector<Line> lines = make(random);
    for (size_t n = random() % 4; n > 0 && !lines.empty(); --n) mutate(lines, random);
    std::string text = text_of(lines);
    if (random() % 8 == 0 && !text.empty()) text[below(text.size(), random)] = static_cast<char>(random());
    if (random() % 32 == 0) text.resize(below(text.size() + 1, random));
    // A block of its exact size, so that reading past its end is seen.
    const std::vector<uint8_t> bytes(text.begin(), text.end());
    try {
      parse_program(text);
      ++accepted;
    } catch (const ProgramError&) {
    }
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    ++tried;
  }
  std::printf("%zu programs, %zu of them right\n", tried, accepted);
  // Neither all refused nor all accepted, or the fuzzer tests nothing.
  return accepted * 20 > tried && accepted < tried ? 0 : 1;
}
