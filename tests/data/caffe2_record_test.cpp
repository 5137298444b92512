#include "data/caffe2_record.h"

#include <cstdint>
#include <string>

#include "support/catch.h"
#include "support/error_of.h"

namespace mnist_train::data {
namespace {

using Catch::Matchers::ContainsSubstring;
using testing::error_of;

std::span<const std::uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

std::string message_of(const std::string& bytes) {
  const auto failure = error_of([&] { parse_caffe2_record(bytes_of(bytes), "db: key 7"); });
  if (!failure.message.empty()) CHECK(failure.code == ExitCode::kData);
  return failure.message;
}

std::string text_of(const Caffe2Record& record) {
  return {reinterpret_cast<const char*>(record.image.data()), record.image.size()};
}

/// A field of bytes: tag, length below 128, content.
std::string field(char tag, const std::string& content) {
  return std::string{static_cast<char>(tag << 3 | 2), static_cast<char>(content.size())} + content;
}

const std::string kImage = field(1, "\x08\x01\x10\x04" + field(6, "JPEG"));
const std::string kLabel = field(1, "\x08\x01\x10\x02" + field(4, "\x05"));

TEST_CASE("an image and its label come back as they were written") {
  for (const std::int32_t label : {0, 1, 127, 128, 999, INT32_MAX}) {
    const std::string bytes = write_caffe2_record("some bytes", label);
    const Caffe2Record record = parse_caffe2_record(bytes_of(bytes), "name");
    CHECK(text_of(record) == "some bytes");
    CHECK(record.label == label);
  }
}

TEST_CASE("the bytes are those of caffe2.proto") {
  CHECK(write_caffe2_record("JPEG", 5) == kImage + kLabel);
}

TEST_CASE("tensors may come in either order, with unpacked or 64-bit labels and other fields") {
  const std::string unpacked = field(1, std::string("\x08\x01\x10\x02\x20\x05", 6));
  const std::string wide = field(1, "\x08\x01\x10\x0A" + field(10, "\x05"));
  const std::string named = field(1, field(7, "label") + "\x08\x01\x10\x02" + field(4, "\x05"));
  for (const std::string& label : {kLabel, unpacked, wide, named}) {
    for (const std::string& bytes :
         {kImage + label, label + kImage, kImage + label + field(9, "x")}) {
      const Caffe2Record record = parse_caffe2_record(bytes_of(bytes), "name");
      CHECK(text_of(record) == "JPEG");
      CHECK(record.label == 5);
    }
  }
}

TEST_CASE("records of other shapes are refused") {
  CHECK_THAT(message_of(""), ContainsSubstring("db: key 7: byte 0 of the record: has no image"));
  CHECK_THAT(message_of(kImage), ContainsSubstring("has no label"));
  CHECK_THAT(message_of(kLabel), ContainsSubstring("has no image"));
  CHECK_THAT(message_of(kImage + kImage + kLabel), ContainsSubstring("more than one image"));
  CHECK_THAT(message_of(kImage + kLabel + kLabel), ContainsSubstring("more than one label"));
  CHECK_THAT(message_of(kImage + field(1, "\x10\x02" + field(4, "\x05\x06"))),
             ContainsSubstring("more than one label"));
  CHECK_THAT(message_of(field(1, "\x10\x03" + field(5, "pixels")) + kLabel),
             ContainsSubstring("raw pixels"));
  CHECK_THAT(message_of(kImage + field(1, "\x10\x01" + field(3, "abcd"))),
             ContainsSubstring("data_type 1"));
  const std::string negative = field(1, "\x10\x02" + field(4, std::string(9, '\xFF') + "\x01"));
  CHECK_THAT(message_of(kImage + negative), ContainsSubstring("label -1 is out of range"));
}

TEST_CASE("every cut-off record is refused, and no damage of a byte crashes the parser") {
  const std::string whole = kImage + kLabel;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    INFO("cut off at byte " << size);
    CHECK_THAT(message_of(whole.substr(0, size)), ContainsSubstring("db: key 7: byte "));
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(value);
      (void)message_of(damaged);
    }
  }
}

}  // namespace
}  // namespace mnist_train::data
