#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/pt_file.h"
#include "support/catch.h"
#include "support/peak_memory.h"
#include "support/pickles.h"

namespace mnist_train::checkpoint {
namespace {

using namespace testing::pickles;
using Catch::Matchers::ContainsSubstring;

/// Why a pickle is refused; nothing when it is not.
std::optional<std::string> refusal(std::string_view pickle) {
  try {
    unpickle_state_dict(pickle);
    return std::nullopt;
  } catch (const std::exception& error) {
    return error.what();
  }
}

struct Hostile {
  std::string pickle;
  const char* reason;
};

void check_pickles_refused(const std::vector<Hostile>& cases) {
  for (const Hostile& bad : cases) {
    INFO(bad.reason);
    CHECK_THAT(refusal(bad.pickle).value_or(""), ContainsSubstring(bad.reason));
  }
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::string repeated(const std::string& piece, std::size_t count) {
  std::string text;
  text.reserve(piece.size() * count);
  for (std::size_t i = 0; i < count; ++i) text += piece;
  return text;
}

TEST_CASE("a state_dict from Python is read without its attributes") {
  const auto entries = unpickle_state_dict(kFromPython);
  REQUIRE(entries.size() == 2);
  CHECK(entries[0].first == "a.weight");
  CHECK(entries[0].second.storage == "0");
  CHECK(entries[0].second.type == c10::ScalarType::Float);
  CHECK(entries[0].second.offset == 0);
  CHECK(entries[0].second.sizes == std::vector<std::int64_t>{3, 2});
  CHECK(entries[0].second.strides == std::vector<std::int64_t>{2, 1});
  CHECK(entries[0].second.required_elements() == 6);
  CHECK(entries[1].first == "a.bias");
  CHECK(entries[1].second.storage == "1");
  CHECK(entries[1].second.sizes == std::vector<std::int64_t>{3});
}

TEST_CASE("the state_dict in a training script's dict is read, the rest is dropped") {
  const std::string number = "G" + std::string(8, '\x3f');
  const std::string optimizer = "}(" + text("state") + "}(K\x02}" + text("step") + number + "su" +
                                text("param_groups") + "](}" + text("params") + "](K\x02K\x01" +
                                "ese" + "u";
  const std::string weights = "}(" + text("w") + small_tensor() + "u";
  for (const char* key : {"model_state_dict", "state_dict"}) {
    const auto entries = unpickle_state_dict(dict(text("epoch") + "K\x07" + text("loss") +
                                                  small_tensor() + text("optimizer") + optimizer +
                                                  text(key) + weights + text("rate") + number));
    REQUIRE(entries.size() == 1);
    CHECK(entries[0].first == "w");
  }
}

TEST_CASE("plain dicts, parameters and every storage type are read") {
  struct Case {
    const char* name;
    c10::ScalarType type;
  };
  for (const Case& known :
       {Case{"FloatStorage", c10::ScalarType::Float},
        Case{"DoubleStorage", c10::ScalarType::Double}, Case{"HalfStorage", c10::ScalarType::Half},
        Case{"BFloat16Storage", c10::ScalarType::BFloat16},
        Case{"LongStorage", c10::ScalarType::Long}, Case{"IntStorage", c10::ScalarType::Int},
        Case{"ByteStorage", c10::ScalarType::Byte}, Case{"BoolStorage", c10::ScalarType::Bool}}) {
    const std::string value = tensor(storage("7", known.name), 5, integer(4), integer(2));
    const auto entries = unpickle_state_dict(dict(text("w") + value));
    REQUIRE(entries.size() == 1);
    CHECK(entries[0].second.type == known.type);
    CHECK(entries[0].second.storage == "7");
    CHECK(entries[0].second.offset == 5);
    CHECK(entries[0].second.required_elements() == 5 + 3 * 2 + 1);
  }
  const std::string parameter =
      global("torch._utils", "_rebuild_parameter") +
      tuple(small_tensor() + "\x88" + global("collections", "OrderedDict") + ")R") + "R";
  CHECK(unpickle_state_dict(dict(text("w") + parameter)).size() == 1);
  CHECK(unpickle_state_dict("\x80\x02}.").empty());
  CHECK(unpickle_state_dict("\x80\x02}" + text("w") + small_tensor() + "s.").size() == 1);
}

TEST_CASE("a scalar needs one element, a tensor without elements none") {
  CHECK(unpickle_state_dict(dict(text("w") + tensor(storage("0"), 9, "", "")))[0]
            .second.required_elements() == 10);
  CHECK(unpickle_state_dict(dict(text("w") + tensor(storage("0"), 9, integer(0) + integer(5),
                                                    integer(5) + integer(1))))[0]
            .second.required_elements() == 0);
}

TEST_CASE("a pickle that was cut off at any byte is refused") {
  for (const std::string& whole : {kFromPython, dict(text("w") + small_tensor())}) {
    CHECK_FALSE(refusal(whole));
    for (std::size_t size = 0; size < whole.size(); ++size) {
      INFO(size << " of " << whole.size() << " bytes");
      REQUIRE(refusal(std::string_view(whole).substr(0, size)));
    }
  }
}

TEST_CASE("a pickle with any byte changed is read or refused, without a crash") {
  std::string pickle = kFromPython;
  int refused = 0;
  for (char& byte : pickle) {
    const char good = byte;
    for (int value = 0; value < 256; ++value) {
      byte = static_cast<char>(value);
      refused += refusal(pickle) ? 1 : 0;
    }
    byte = good;
  }
  CHECK(refused > 50000);  // of 79,616
}

TEST_CASE("a small file cannot unfold to much memory or take long") {
  constexpr std::size_t kMany = 1 << 20;
  const std::string long_text(1 << 20, 'x');
  const std::string keep(std::string("q\x01", 2));
  std::string doubling = "\x80\x02)q" + std::string(1, '\0');
  for (int i = 0; i < 60; ++i) {  // each tuple holds the one before twice
    doubling += std::string("h") + static_cast<char>(i) + "h" + static_cast<char>(i) + "\x86q" +
                static_cast<char>(i + 1);
  }
  std::string kept = "\x80\x02";
  for (std::size_t i = 0; i < 2 * kMany; ++i) kept += "Nr" + little_endian(i, 4) + "b";
  struct Case {
    const char* name;
    std::string pickle;
  };
  const std::vector<Case> bombs{
      {"many values, then a tuple", "\x80\x02(" + repeated("N", kMany - 2) + "t."},
      {"many values, then a dict's items", "\x80\x02}(" + repeated("N", kMany - 3) + "u."},
      {"many values that are kept", kept + "."},
      {"many values", "\x80\x02" + repeated("N", 4 * kMany) + "."},
      {"deep tuples", "\x80\x02)" + repeated("\x85", kMany) + "."},
      {"tuples that double", doubling + "."},
      {"a long text, again and again",
       "\x80\x02" + text(long_text) + keep + repeated(std::string("h\x01", 2), kMany / 2) + "."},
      {"a record with a long name, again and again",
       "\x80\x02" + storage(long_text.substr(0, 100000)) + keep +
           repeated(std::string("h\x01", 2), kMany / 2) + "."},
      {"a tensor in a record with a long name, again and again",
       "\x80\x02" + tensor(storage(long_text.substr(0, 100000)), 0, "", "") + keep +
           repeated(std::string("h\x01", 2), kMany / 2) + "."},
  };
  for (const Case& bomb : bombs) {
    testing::reset_peak_memory();
    const std::size_t before = testing::peak_memory();
    const auto begin = std::chrono::steady_clock::now();
    INFO(bomb.name);
    CHECK(refusal(bomb.pickle));
    CHECK(seconds_since(begin) < 5);
    CHECK(testing::peak_memory() < before + (std::size_t{400} << 20));
  }
}

const std::string kOrdered = global("collections", "OrderedDict");
const std::string kRebuild = global("torch._utils", "_rebuild_tensor_v2");

TEST_CASE("functions and opcodes that no state_dict needs are refused by name") {
  check_pickles_refused({
      {"\x80\x02" + global("os", "system") + tuple(text("touch /tmp/x")) + "R.",
       "asks for os.system"},
      {"\x80\x02" + global("posix", "system") + ".", "asks for posix.system"},
      {"\x80\x02" + global("builtins", "eval") + ".", "asks for builtins.eval"},
      {"\x80\x02" + global("torch", "load") + ".", "asks for torch.load"},
      {"\x80\x02" + global("torch._utils", "_rebuild_tensor_v2.__globals__") + ".", "asks for"},
      {"\x80\x02" + global("torch.serialization", "_get_layout") + ".", "asks for"},
      {std::string("\x80\x04\x95\0\0\0\0\0\0\0\0}.", 13), "opcode 149"},  // FRAME
      {"ios\nsystem\n.", "opcode 105"},                                   // INST
      {"\x80\x02(o.", "opcode 111"},                                      // OBJ
      {"\x80\x02\x93.", "opcode 147"},                                    // STACK_GLOBAL
      {"\x80\x02\x81.", "opcode 129"},                                    // NEWOBJ
      {"\x80\x02P0\n.", "opcode 80"},                                     // PERSID
      {"\x80\x02\x82\x01.", "opcode 130"},                                // EXT1
      {"\x80\x02"
       "C\x01x.",
       "opcode 67"},                   // SHORT_BINBYTES
      {"\x80\x02I3\n.", "opcode 73"},  // INT, as text
      {std::string("\x80\x02\0.", 4), "opcode 0"},
      {"\x80\x02.", "stack is empty"},
      {"\x80\x02R.", "stack is empty"},
      {"\x80\x02Nt.", "stack is empty"},
      {"\x80\x02}u.", "stack is empty"},
      {"\x80\x02\x87.", "stack is empty"},
      {"\x80\x02(.", "not a dict"},
      {"\x80\x02N.", "not a dict"},
      {"\x80\x02].", "not a dict"},
      {"\x80\x02NNa.", "appends to something that is not a list"},
      {"\x80\x02}(Ne.", "not a list"},
      {"\x80\x02G123.", "ends too early"},
      {"\x80\x02" + small_tensor() + ".", "not a dict"},
      {"\x80\x02" + kOrdered + ".", "not a dict"},
      {"\x80\x02h\x07.", "recalls what it never kept"},
      {"\x80\x02\x8a\x09" + std::string(9, '\x01') + ".", "more than 64 bits"},
      {"\x80\x02X\xff\xff\xff\xff"
       "abc.",
       "ends too early"},
      {"\x80\x02"
       "cno newline",
       "ends too early"},
  });
}

TEST_CASE("invalid calls, storages and tensors are refused with the reason") {
  const auto with_tensor = [](const std::string& value) { return dict(text("w") + value); };
  const auto dimensions = [](int count) {
    std::string items;
    for (int i = 0; i < count; ++i) items += integer(1);
    return items;
  };
  check_pickles_refused({
      {"\x80\x02N" + tuple("") + "R.", "not a function"},
      {"\x80\x02" + kOrdered + "NR.", "not a function"},
      {"\x80\x02" + kOrdered + tuple("N") + "R.", "in an unknown way"},
      {"\x80\x02" + global("torch", "FloatStorage") + ")R.", "in an unknown way"},
      {"\x80\x02" + global("torch._utils", "_rebuild_parameter") + ")R.", "in an unknown way"},
      {"\x80\x02" + global("torch._utils", "_rebuild_parameter") + tuple("N") + "R.",
       "in an unknown way"},
      {"\x80\x02" + kRebuild + ")R.", "described in an unknown way"},
      {"\x80\x02" + kRebuild + tuple("NNNN") + "R.", "described in an unknown way"},
      {"\x80\x02NQ.", "storage is described in an unknown way"},
      {"\x80\x02" + tuple("NNN") + "Q.", "storage is described in an unknown way"},
      {"\x80\x02" + tuple(text("storage") + kOrdered + text("0")) + "Q.", "unknown type"},
      {with_tensor(tensor(storage("0"), -1, integer(1), integer(1))), "in an unknown way"},
      {with_tensor(tensor(storage("0"), 0, integer(-1), integer(1))), "non-negative"},
      {with_tensor(tensor(storage("0"), 0, integer(1), integer(-1))), "non-negative"},
      {with_tensor(tensor(storage("0"), 0, "N", integer(1))), "non-negative"},
      {with_tensor(tensor(storage("0"), 0, integer(1), "")), "as many strides"},
      {with_tensor(tensor(storage("0"), 0, dimensions(65), dimensions(65))),
       "not a tuple of integers"},
      {with_tensor(tensor(storage("0"), INT64_MAX, (integer(INT64_MAX) + integer(INT64_MAX)),
                          (integer(INT64_MAX) + integer(INT64_MAX)))),
       "overflows"},
      {with_tensor("K\x01"), "\"w\" is not a tensor"},
      {with_tensor("N"), "\"w\" is not a tensor"},
      {with_tensor("}"), "\"w\" is not a tensor"},
      {dict(text("model") + "}(" + text("w") + small_tensor() + "u"), "\"model\" is not a tensor"},
      {dict(text("state_dict") + "}(" + text("w") + "Nu"),
       "in \"state_dict\" \"w\" is not a tensor"},
      {dict(text("state_dict") + "}(K\x01" + small_tensor() + "u"),
       "in \"state_dict\" a dict has a key"},
      {dict(text("state_dict") + "}(" + text("state_dict") + "}" + text("w") + "Nu"), "\"w\""},
      {dict(text("") + "N"), "not a tensor"},
      {dict("K\x01" + small_tensor()), "a key that is not text"},
      {dict(text("w")), "sets items of something that is not a dict"},
      {"\x80\x02N" + text("w") + small_tensor() + "s.", "not a dict"},
  });
}

}  // namespace
}  // namespace mnist_train::checkpoint
