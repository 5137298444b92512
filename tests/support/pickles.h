#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// Pieces of pickles, to put together good and hostile ones. The names are those of Python's
/// pickletools.
namespace mnist_train::testing::pickles {

/// What PyTorch 2.11 under Python 3.11 writes for the state_dict of `Sequential(a=Linear(2, 3))`:
/// an OrderedDict with attributes, "a.weight" [3,2] in storage 0 and "a.bias" [3] in storage 1.
inline const std::string kFromPython = [] {
  constexpr char kBytes[] =
      "\x80\x02"
      "ccollections\nOrderedDict\nq\x00)Rq\x01(X\x08\x00\x00\x00"
      "a.weightq\x02"
      "ctorch._utils\n_rebuild_tensor_v2\nq\x03((X\x07\x00\x00\x00storageq\x04"
      "ctorch\n"
      "FloatStorage\nq\x05X\x01\x00\x00\x00"
      "0q\x06X\x03\x00\x00\x00"
      "cpuq\x07K\x06tq\x08"
      "QK\x00K\x03K\x02\x86q\x09K\x02K\x01\x86q\n\x89h\x00)Rq\x0btq\x0cRq\x0dX\x06\x00\x00"
      "\x00"
      "a.biasq\x0eh\x03((h\x04h\x05X\x01\x00\x00\x00"
      "1q\x0fh\x07K\x03tq\x10QK\x00"
      "K\x03\x85q\x11K\x01\x85q\x12\x89h\x00)Rq\x13tq\x14Rq\x15u}q\x16X\x09\x00\x00\x00_"
      "metadataq\x17h\x00)Rq\x18(X\x00\x00\x00\x00q\x19}q\x1aX\x07\x00\x00\x00versionq\x1b"
      "K\x01sX\x01\x00\x00\x00"
      "aq\x1c}q\x1dh\x1bK\x01susb.";
  return std::string(kBytes, sizeof kBytes - 1);
}();

inline std::string little_endian(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

inline std::string text(std::string_view content) {  // BINUNICODE
  return "X" + little_endian(content.size(), 4) + std::string(content);
}
inline std::string integer(std::int64_t value) {  // LONG1
  return std::string("\x8a\x08") + little_endian(static_cast<std::uint64_t>(value), 8);
}
inline std::string global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
inline std::string tuple(const std::string& items) { return "(" + items + "t"; }

/// The persistent id of a storage, and what refers to it.
inline std::string storage(const std::string& record, const std::string& type = "FloatStorage") {
  return tuple(text("storage") + global("torch", type) + text(record) + text("cpu") + "K\x06") +
         "Q";
}
inline std::string tensor(const std::string& storage, std::int64_t offset, const std::string& sizes,
                          const std::string& strides) {
  return global("torch._utils", "_rebuild_tensor_v2") +
         tuple(storage + integer(offset) + tuple(sizes) + tuple(strides) + "\x89" +
               global("collections", "OrderedDict") + ")R") +
         "R";
}
/// A tensor [2,3] in record "0".
inline std::string small_tensor() {
  return tensor(storage("0"), 0, integer(2) + integer(3), integer(3) + integer(1));
}
/// A whole pickle of a dict with these keys and values.
inline std::string dict(const std::string& items) { return "\x80\x02}(" + items + "u."; }

}  // namespace mnist_train::testing::pickles
