// The parser of docs/format.md. It reads line by line and token by token, keeps nothing that it has not checked,
// and names the line in every message.
#include "program.h"

#include <algorithm>

namespace onnxfuse {
namespace {

constexpr OpcodeInfo kTable[] = {
#define ONNXFUSE_ROW(name, arity, form, types, commutative, cost) \
  {#name, arity, Form::k_##form, types, commutative != 0, static_cast<float>(cost)},
    ONNXFUSE_INSTRUCTIONS(ONNXFUSE_ROW)
#undef ONNXFUSE_ROW
};

constexpr const char* kDTypeNames[] = {
#define ONNXFUSE_NAME(name, bytes) #name,
    ONNXFUSE_DTYPES(ONNXFUSE_NAME)
#undef ONNXFUSE_NAME
};

constexpr uint8_t kDTypeBytes[] = {
#define ONNXFUSE_BYTES(name, bytes) bytes,
    ONNXFUSE_DTYPES(ONNXFUSE_BYTES)
#undef ONNXFUSE_BYTES
};

static_assert(kDTypes <= 32, "type_mask has 32 bits");
static_assert(kOpcodes <= 256, "Opcode has 8 bits");

constexpr size_t kMaxPad = 8;
constexpr std::string_view kHeader = "onnxfuse 1";

// Text of the program as it may stand in a message: printable, short, quoted.
std::string quoted(std::string_view text) {
  constexpr size_t kLongest = 40;
  std::string result = "'";
  for (char c : text.substr(0, kLongest)) result += (c >= ' ' && c <= '~') ? c : '?';
  result += text.size() > kLongest ? "...'" : "'";
  return result;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  Program parse() {
    if (rest_.size() > ONNXFUSE_MAX_TEXT)
      throw ProgramError("line 1: the text has " + std::to_string(rest_.size()) + " bytes; the limit is " +
                         std::to_string(ONNXFUSE_MAX_TEXT));
    if (!next_line() || line_ != kHeader) fail("a program begins with " + quoted(kHeader) + ", not " + quoted(line_));
    bool more = next_line();
    for (; more && starts("in "); more = next_line()) input();
    if (program_.inputs.empty()) fail("there is no x input");
    for (; more && starts("t"); more = next_line()) statement();
    for (; more && starts("out "); more = next_line()) output();
    if (more) fail("expected " + expected() + ", not " + quoted(line_));
    if (program_.outputs.empty()) fail("there is no output");
    return std::move(program_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw ProgramError("line " + std::to_string(number_) + ": " + what);
  }

  bool starts(std::string_view prefix) const { return line_.substr(0, prefix.size()) == prefix; }

  std::string expected() const {
    if (!program_.outputs.empty()) return "'out' or the end";
    return program_.statements.empty() ? "'in', a statement or 'out'" : "a statement or 'out'";
  }

  bool next_line() {
    ++number_;
    line_ = {};
    if (rest_.empty()) return false;
    const size_t end = rest_.find('\n');
    if (end == std::string_view::npos) {
      line_ = rest_;
      fail("the line does not end with a newline: " + quoted(line_));
    }
    line_ = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    left_ = line_;
    at_end_ = false;
    return true;
  }

  // The next token of the line: tokens are separated by exactly one space.
  std::string_view token(const char* what) {
    if (at_end_) fail(std::string("expected ") + what + " at the end of " + quoted(line_));
    const size_t space = left_.find(' ');
    const std::string_view result = left_.substr(0, space);
    if (result.empty()) fail(std::string("expected ") + what + ", not an empty word, in " + quoted(line_));
    if (space == std::string_view::npos) at_end_ = true;
    else left_.remove_prefix(space + 1);
    return result;
  }

  void end_of_line() const {
    if (!at_end_) fail("nothing may follow here: " + quoted(left_));
  }

  // NUMBER of the grammar: at most five digits, no leading zero.
  bool number(std::string_view text, uint32_t& value) const noexcept {
    if (text.empty() || text.size() > 5 || (text[0] == '0' && text.size() > 1)) return false;
    value = 0;
    for (char c : text) {
      if (c < '0' || c > '9') return false;
      value = value * 10 + static_cast<uint32_t>(c - '0');
    }
    return true;
  }

  DType dtype(std::string_view text) const {
    for (size_t i = 0; i < kDTypes; ++i)
      if (text == kDTypeNames[i]) return static_cast<DType>(i);
    fail("unknown type " + quoted(text));
  }

  Opcode opcode(std::string_view text) const {
    for (size_t i = 0; i < kOpcodes; ++i)
      if (text == kTable[i].name) return static_cast<Opcode>(i);
    fail("unknown instruction " + quoted(text));
  }

  uint32_t value(std::string_view text) const {
    uint32_t k = 0;
    if (!number(text.substr(1), k)) fail("expected a value such as x0, c0 or t0, not " + quoted(text));
    const size_t tensors = tensors_, inputs = program_.inputs.size();
    if (text[0] == 'x' && k < tensors) return k;
    if (text[0] == 'c' && k < inputs - tensors) return static_cast<uint32_t>(tensors + k);
    if (text[0] == 't' && k < program_.statements.size()) return static_cast<uint32_t>(inputs + k);
    if (text[0] != 'x' && text[0] != 'c' && text[0] != 't')
      fail("expected a value such as x0, c0 or t0, not " + quoted(text));
    fail(quoted(text) + " is used before it is defined");
  }

  void input() {
    token("'in'");
    const std::string_view input_name = token("an input");
    const bool scalar = input_name[0] == 'c';
    const size_t next = scalar ? program_.inputs.size() - tensors_ : tensors_;
    uint32_t k = 0;
    if ((input_name[0] != 'x' && !scalar) || !number(input_name.substr(1), k))
      fail("expected an input such as x0 or c0, not " + quoted(input_name));
    if (scalar && tensors_ == 0) fail("there is no x input");
    if (!scalar && tensors_ != program_.inputs.size()) fail("the x inputs stand before the c inputs");
    if (k != next)
      fail("expected input " + std::string(1, input_name[0]) + std::to_string(next) + ", not " + quoted(input_name));
    if (program_.inputs.size() == ONNXFUSE_MAX_INPUTS)
      fail("more than " + std::to_string(ONNXFUSE_MAX_INPUTS) + " inputs");
    InputDecl decl{dtype(token("a type")), 0, scalar};
    if (!at_end_) {
      if (scalar || token("'pad'") != "pad")
        fail("nothing may follow the type of " + quoted(input_name) + (scalar ? "" : " but 'pad'"));
      const std::string_view text = token("a number of dims");
      uint32_t pad = 0;
      if (!number(text, pad) || pad < 1 || pad > kMaxPad)
        fail("expected a pad of 1 to " + std::to_string(kMaxPad) + ", not " + quoted(text));
      decl.pad = static_cast<int>(pad);
    }
    end_of_line();
    program_.inputs.push_back(decl);
    if (!scalar) ++tensors_;
  }

  void output() {
    token("'out'");
    const uint32_t id = value(token("a value"));
    end_of_line();
    if (program_.outputs.size() == ONNXFUSE_MAX_OUTPUTS)
      fail("more than " + std::to_string(ONNXFUSE_MAX_OUTPUTS) + " outputs");
    program_.outputs.push_back(id);
  }

  void statement() {
    const std::string_view result = token("a result");
    uint32_t k = 0;
    if (!number(result.substr(1), k)) fail("expected a result such as t0, not " + quoted(result));
    if (k != program_.statements.size())
      fail("expected result t" + std::to_string(program_.statements.size()) + ", not " + quoted(result));
    if (program_.statements.size() == ONNXFUSE_MAX_STATEMENTS)
      fail("more than " + std::to_string(ONNXFUSE_MAX_STATEMENTS) + " statements");
    if (token("'='") != "=") fail("expected '=' behind " + quoted(result));

    const std::string_view word = token("an instruction");
    const size_t dot = word.find('.');
    if (dot == std::string_view::npos) fail("expected an instruction with its types, not " + quoted(word));
    Stmt stmt{};
    stmt.op = opcode(word.substr(0, dot));
    types(word, word.substr(dot + 1), stmt);
    if (kTable[static_cast<size_t>(stmt.op)].form == Form::k_const) stmt.bits = bits(stmt.t1);
    else operands(word, stmt);
    end_of_line();
    program_.statements.push_back(stmt);
  }

  // Reads the types behind the name and checks that the instruction takes them.
  void types(std::string_view word, std::string_view text, Stmt& stmt) const {
    const OpcodeInfo& row = kTable[static_cast<size_t>(stmt.op)];
    const size_t dot = text.find('.');
    const bool two = row.form == Form::k_compare || row.form == Form::k_select || row.form == Form::k_cast;
    if (two != (dot != std::string_view::npos))
      fail("instruction " + quoted(word) + " takes " + (two ? "two types" : "one type"));
    stmt.t0 = dtype(text.substr(0, dot));
    stmt.t1 = two ? dtype(text.substr(dot + 1)) : stmt.t0;
    const auto takes = [&](DType t) { return (row.type_mask >> static_cast<unsigned>(t) & 1u) != 0; };
    bool fits = takes(stmt.t0);
    if (row.form == Form::k_compare) fits = fits && stmt.t1 == DType::k_bool;
    if (row.form == Form::k_select) fits = stmt.t0 == DType::k_bool && takes(stmt.t1);
    if (row.form == Form::k_cast) fits = fits && takes(stmt.t1);
    if (!fits) fail("there is no instruction " + quoted(word));
  }

  void operands(std::string_view word, Stmt& stmt) {
    const OpcodeInfo& row = kTable[static_cast<size_t>(stmt.op)];
    for (unsigned i = 0; i < row.arity; ++i) {
      const std::string_view text = token("an operand");
      const uint32_t id = value(text);
      const DType want = row.form == Form::k_select && i > 0 ? stmt.t1 : stmt.t0;
      const DType have = program_.type_of(id);
      if (have != want)
        fail("operand " + quoted(text) + " of " + quoted(word) + " is " + name(have) + ", not " + name(want));
      stmt.operands[i] = id;
    }
  }

  uint64_t bits(DType type) {
    const std::string_view text = token("the bits");
    const size_t digits = 2 * size_of(type);
    bool fits = text.size() == digits + 2 && text.substr(0, 2) == "0x";
    uint64_t result = 0;
    for (size_t i = 2; fits && i < text.size(); ++i) {
      const char c = text[i];
      const bool digit = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
      fits = digit || letter;
      result = result << 4 | static_cast<uint64_t>(digit ? c - '0' : c - 'a' + 10);
    }
    if (!fits) fail("expected 0x and " + std::to_string(digits) + " lower-case hex digits, not " + quoted(text));
    if (type == DType::k_bool && result > 1) fail("a bool is 0x00 or 0x01, not " + quoted(text));
    return result;
  }

  std::string_view rest_;   // text behind the current line
  std::string_view line_;   // the current line, for messages
  std::string_view left_;   // what of it is not yet read, unless at_end_
  bool at_end_ = false;
  size_t number_ = 0;       // of the current line, from 1
  size_t tensors_ = 0;      // x inputs so far
  Program program_;
};

}  // namespace

const OpcodeInfo& info(Opcode op) noexcept { return kTable[static_cast<size_t>(op)]; }
const char* name(DType type) noexcept { return kDTypeNames[static_cast<size_t>(type)]; }
size_t size_of(DType type) noexcept { return kDTypeBytes[static_cast<size_t>(type)]; }

size_t Program::scalar_count() const noexcept {
  return static_cast<size_t>(
      std::count_if(inputs.begin(), inputs.end(), [](const InputDecl& decl) { return decl.is_scalar; }));
}

Program parse_program(std::string_view text) { return Parser(text).parse(); }

}  // namespace onnxfuse
