#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/pt_file.h"
#include "support/catch.h"
#include "support/idx_bytes.h"
#include "support/peak_memory.h"
#include "support/pickles.h"

namespace mnist_train::checkpoint {
namespace {

using namespace testing::pickles;

/// Why a pickle is refused; nothing when it is not.
std::optional<std::string> refusal(std::string_view pickle) {
  try {
    unpickle_state_dict(pickle);
    return std::nullopt;
  } catch (const std::exception& error) {
    return error.what();
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

TEST_CASE("a state_dict from Python is understood, its attributes are dropped") {
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

TEST_CASE("the state_dict of what a training script saves is taken, the rest is dropped") {
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

TEST_CASE("plain dicts, parameters and every storage type are understood") {
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

TEST_CASE("a pickle with any byte changed is understood or refused, and nothing else happens") {
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

TEST_CASE("noise is refused") {
  for (std::uint64_t salt = 0; salt < 2000; ++salt) {
    REQUIRE(refusal("\x80\x02" + testing::noise(200, salt) + "."));
  }
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

}  // namespace
}  // namespace mnist_train::checkpoint
