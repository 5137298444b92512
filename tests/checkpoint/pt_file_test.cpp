#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <caffe2/serialize/inline_container.h>

#include <chrono>

#include "base/file.h"
#include "checkpoint/tensor_file.h"
#include "support/damage.h"
#include "support/error_of.h"
#include "support/file_size_limit.h"
#include "support/peak_memory.h"
#include "support/temp_folder.h"

namespace mnist_train::checkpoint {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;
using namespace testing;

/// Building blocks of valid and hostile pickles; opcodes are named as in Python's pickletools.
namespace pickles {

/// A pickle by PyTorch 2.11 (Python 3.11) of the state_dict of `Sequential(a=Linear(2, 3))`: an
/// OrderedDict with attributes, "a.weight" [3,2] in storage 0 and "a.bias" [3] in storage 1.
const std::string kFromPython = [] {
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

std::string little_endian(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

std::string text(std::string_view content) {  // BINUNICODE
  return "X" + little_endian(content.size(), 4) + std::string(content);
}
std::string integer(std::int64_t value) {  // LONG1
  return std::string("\x8a\x08") + little_endian(static_cast<std::uint64_t>(value), 8);
}
std::string global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
std::string tuple(const std::string& items) { return "(" + items + "t"; }

const std::string kOrdered = global("collections", "OrderedDict");
const std::string kRebuild = global("torch._utils", "_rebuild_tensor_v2");

/// The persistent id of a storage, followed by the opcode that loads it.
std::string storage(const std::string& record, const std::string& type = "FloatStorage") {
  return tuple(text("storage") + global("torch", type) + text(record) + text("cpu") + "K\x06") +
         "Q";
}
std::string tensor(const std::string& storage, std::int64_t offset, const std::string& sizes,
                   const std::string& strides) {
  return kRebuild +
         tuple(storage + integer(offset) + tuple(sizes) + tuple(strides) + "\x89" + kOrdered +
               ")R") +
         "R";
}
/// A tensor [2,3] in record "0".
std::string small_tensor() {
  return tensor(storage("0"), 0, integer(2) + integer(3), integer(3) + integer(1));
}
/// A complete pickle of a dict with these keys and values.
std::string dict(const std::string& items) { return "\x80\x02}(" + items + "u."; }

}  // namespace pickles

using namespace pickles;

/// An archive with the layout that `torch.save` writes.
struct Archive {
  std::string pickle;
  std::vector<std::pair<std::string, std::string>> storages;  // record, bytes
  bool compressed = false;

  fs::path write(const TempFolder& folder) const {
    const fs::path path = folder.path() / "archive.pt";
    caffe2::serialize::PyTorchStreamWriter writer(path.string());
    if (!pickle.empty()) writer.writeRecord("data.pkl", pickle.data(), pickle.size());
    for (const auto& [record, bytes] : storages) {
      writer.writeRecord("data/" + record, bytes.data(), bytes.size(), compressed);
    }
    writer.writeEndOfFile();
    return path;
  }
};

std::string floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

Failure reading(const fs::path& path) {
  return error_of([&] { read_pt(path); });
}

TEST_CASE("weights survive a round trip") {
  const TempFolder folder;
  const NamedTensors written{{"conv1.weight", at::randn({20, 1, 5, 5})},
                             {"half", at::randn({3}).to(at::kBFloat16)},
                             {"norm.num_batches_tracked", at::randint(0, 100, {}, at::kLong)},
                             {"empty", at::empty({0, 4})},
                             {"fc.bias", at::randn({10})}};
  write_pt(folder.path() / "model.pt", written);
  const NamedTensors read = read_pt(folder.path() / "model.pt").tensors;
  REQUIRE(read.size() == written.size());
  for (std::size_t i = 0; i < read.size(); ++i) {
    CHECK(read[i].first == written[i].first);
    CHECK(read[i].second.scalar_type() == written[i].second.scalar_type());
    CHECK(read[i].second.equal(written[i].second));  // also compares sizes
  }
}

TEST_CASE("views of one storage, even expanded ones, are read as separate tensors") {
  const TempFolder folder;
  const auto view = [](std::int64_t offset, const std::string& sizes, const std::string& strides) {
    return tensor(storage("0"), offset, sizes, strides);
  };
  const Archive archive{
      dict(text("transposed") + view(0, integer(3) + integer(2), integer(1) + integer(3)) +
           text("tail") + view(4, integer(2), integer(1)) + text("expanded") +
           view(1, integer(2) + integer(512), integer(1) + integer(0))),
      {{"0", floats({1, 2, 3, 4, 5, 6})}}};
  const NamedTensors weights = read_pt(archive.write(folder)).tensors;
  REQUIRE(weights.size() == 3);
  CHECK(weights[0].second.equal(at::tensor({1.0F, 4.0F, 2.0F, 5.0F, 3.0F, 6.0F}).reshape({3, 2})));
  CHECK(weights[0].second.is_contiguous());
  CHECK(weights[1].second.equal(at::tensor({5.0F, 6.0F})));
  CHECK(weights[2].second.equal(at::tensor({2.0F, 3.0F}).unsqueeze(1).expand({2, 512})));
}

TEST_CASE("a .pt file truncated at any byte is refused") {
  const TempFolder folder;
  const fs::path path = folder.path() / "model.pt";
  write_pt(path, {{"w", at::randn({4, 4})}, {"b", at::randn({4})}});
  for (std::size_t size = fs::file_size(path); size-- > 0;) {
    fs::resize_file(path, size);
    INFO(size << " bytes");
    REQUIRE_THAT(reading(path), IsError(ExitCode::kCheckpoint, path.string()));
  }
}

TEST_CASE("a file with any flipped bit is either read or refused, without a crash") {
  const TempFolder folder;
  const fs::path path = folder.path() / "model.pt";
  write_pt(path, {{"w", at::randn({2, 2})}});
  int refused = 0;
  for_each_flipped_bit(path, {0, 5}, [&] {
    const Failure failure = reading(path);
    if (failure.message.empty()) return;
    ++refused;
    REQUIRE(failure.code == ExitCode::kCheckpoint);
  });
  CHECK(refused > 100);
  CHECK(read_pt(path).tensors.size() == 1);
}

TEST_CASE("a flipped bit in a tensor is detected") {
  const TempFolder folder;
  const fs::path path = folder.path() / "model.pt";
  write_pt(path, {{"w", at::zeros({64})}});
  const std::string content = read_file(path, 1 << 20, ExitCode::kCheckpoint);
  const std::size_t data = content.find(std::string(256, '\0'));
  REQUIRE(data != std::string::npos);
  flip_bit(path, data + 128, 3);
  CHECK_THAT(reading(path), IsError(ExitCode::kCheckpoint,
                                    "record data/0 is damaged: its bytes do not match its CRC-32"));
}

TEST_CASE("inconsistent archives are refused with the reason") {
  const std::string six = floats({1, 2, 3, 4, 5, 6});
  const auto of_six = [&](std::int64_t offset, const std::string& sizes,
                          const std::string& strides) -> Archive {
    return {dict(text("w") + tensor(storage("0"), offset, sizes, strides)), {{"0", six}}};
  };
  struct Case {
    Archive archive;
    const char* reason;
  };
  const std::vector<Case> cases{
      {{"", {{"0", six}}}, "data.pkl"},
      {{dict(text("w") + small_tensor()), {}}, "data/0"},
      {of_six(0, integer(7), integer(1)), "smaller than its tensor"},
      {of_six(1, integer(6), integer(1)), "smaller than its tensor"},
      {of_six(0, integer(2) + integer(3), integer(4) + integer(1)), "smaller than its tensor"},
      {of_six(0, integer(1000000) + integer(1000000), integer(0) + integer(0)),
       "much larger than the file"},
      {of_six(0, integer(INT64_MAX) + integer(INT64_MAX), integer(0) + integer(0)),
       "much larger than the file"},
      {{of_six(0, integer(6), integer(1)).pickle, {{"0", ""}}}, "smaller than its tensor"},
      {{"\x80\x02" + global("os", "system") + ".", {}}, "a non-empty dict of tensors"},
  };
  for (const Case& bad : cases) {
    const TempFolder folder;
    const fs::path path = bad.archive.write(folder);
    INFO(bad.reason);
    CHECK_THAT(reading(path), IsError(ExitCode::kCheckpoint, path.string(), bad.reason));
  }
}

TEST_CASE("wherever in a file the disk runs full, the error names the file") {
  const NamedTensors weights{{"w", at::randn({300, 100})}, {"b", at::randn({100})}};
  const TempFolder folder;
  const fs::path path = folder.path() / "model.pt";
  for (const rlim_t bytes : {0, 10, 1000, 60000, 121000}) {
    Failure failure;
    {
      const FileSizeLimit limit(bytes);
      failure = error_of([&] { write_pt(path, weights); });
    }
    INFO(bytes);
    CHECK_THAT(failure, IsError(ExitCode::kCheckpoint, "model.pt: cannot write: File too large"));
    CHECK(fs::is_empty(folder.path()));
  }
}

TEST_CASE("a small file cannot expand to much memory") {
  constexpr std::int64_t kElements = 1 << 20;
  const TempFolder folder;
  const std::string value = tensor(storage("0"), 0, integer(kElements), integer(1));
  std::string items;
  for (int i = 0; i < 2000; ++i) items += text("w" + std::to_string(i)) + value;
  const std::vector<Archive> bombs{
      // 2,000 tensors in one storage of 4 MiB.
      {dict(items), {{"0", std::string(kElements * 4, '\0')}}},
      // 256 MiB of zeros, compressed to less than 1 MiB.
      {dict(text("w") + value), {{"0", std::string(256 << 20, '\0')}}, true},
  };
  for (const Archive& bomb : bombs) {
    const fs::path path = bomb.write(folder);
    reset_peak_memory();
    const std::size_t before = peak_memory();
    CHECK_THAT(reading(path), IsError(ExitCode::kCheckpoint, "larger than the file"));
    CHECK(peak_memory() < before + (std::size_t{100} << 20));
  }
}

/// Returns why a pickle or an entry of its state_dict is refused; nullopt if all entries are read.
std::optional<std::string> refusal(std::string_view pickle) {
  try {
    for (const auto& [name, tensor] : unpickle_state_dict(pickle)) {
      if (!tensor.problem.empty()) return name + " " + tensor.problem;
    }
    return std::nullopt;
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// Pickles that are all refused for the same reason.
struct Hostile {
  const char* reason;
  std::vector<std::string> pickles;
};

void check_pickles_refused(const std::vector<Hostile>& cases) {
  for (const Hostile& bad : cases) {
    for (const std::string& pickle : bad.pickles) {
      CHECK_THAT(refusal(pickle).value_or(""), ContainsSubstring(bad.reason));
    }
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

TEST_CASE("plain dicts and every storage type are read") {
  for (const auto& [name, type] : {std::pair{"FloatStorage", at::kFloat},
                                   {"DoubleStorage", at::kDouble},
                                   {"HalfStorage", at::kHalf},
                                   {"BFloat16Storage", at::kBFloat16},
                                   {"LongStorage", at::kLong},
                                   {"IntStorage", at::kInt},
                                   {"ShortStorage", at::kShort},
                                   {"CharStorage", at::kChar},
                                   {"ByteStorage", at::kByte},
                                   {"BoolStorage", at::kBool}}) {
    const std::string value = tensor(storage("7", name), 5, integer(4), integer(2));
    const auto entries = unpickle_state_dict(dict(text("w") + value));
    REQUIRE(entries.size() == 1);
    CHECK(entries[0].second.type == type);
    CHECK(entries[0].second.storage == "7");
    CHECK(entries[0].second.offset == 5);
    CHECK(entries[0].second.required_elements() == 5 + 3 * 2 + 1);
  }
  CHECK(unpickle_state_dict("\x80\x02}" + text("w") + small_tensor() + "s.").size() == 1);
}

TEST_CASE("a scalar requires one storage element, and an empty tensor requires none") {
  const auto required = [](const std::string& value) {
    return unpickle_state_dict(dict(text("w") + value))[0].second.required_elements();
  };
  CHECK(required(tensor(storage("0"), 9, "", "")) == 10);
  CHECK(required(tensor(storage("0"), 9, integer(0) + integer(5), integer(5) + integer(1))) == 0);
}

TEST_CASE("a pickle truncated at any byte is refused") {
  for (const std::string& whole : {kFromPython, dict(text("w") + small_tensor())}) {
    CHECK_FALSE(refusal(whole));
    for (std::size_t size = 0; size < whole.size(); ++size) {
      INFO(size << " of " << whole.size() << " bytes");
      REQUIRE(refusal(std::string_view(whole).substr(0, size)));
    }
  }
}

TEST_CASE("a pickle with any byte changed is either read or refused, without a crash") {
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
  CHECK(refused > 50000);  // of 79,616 variants
}

TEST_CASE("a small pickle can neither take much memory nor much time") {
  constexpr std::size_t kMany = 1 << 20;
  const std::string long_text(1 << 20, 'x');
  const std::string long_name = long_text.substr(0, 100000);
  const std::string keep = "q\x01";
  const std::string recall = "h\x01";
  const std::string drop = "0";
  std::string doubling = "\x80\x02)q" + std::string(1, '\0');
  for (int i = 0; i < 60; ++i) {  // each tuple contains the previous one twice
    doubling += std::string("h") + static_cast<char>(i) + "h" + static_cast<char>(i) + "\x86q" +
                static_cast<char>(i + 1);
  }
  std::string kept = "\x80\x02";
  for (std::size_t i = 0; i < 2 * kMany; ++i) kept += "Nr" + little_endian(i, 4) + "0";
  const std::string many_dimensions = repeated(integer(1), 16);
  struct Case {
    const char* name;
    std::string pickle;
  };
  const std::vector<Case> bombs{
      {"many values, then a tuple", "\x80\x02(" + repeated("N", kMany - 2) + "t."},
      {"many values, then a dict's items", "\x80\x02}(" + repeated("N", kMany - 3) + "u."},
      {"many values in the memo", kept + "."},
      {"many values", "\x80\x02" + repeated("N", 4 * kMany) + "."},
      {"deep tuples", "\x80\x02)" + repeated("\x85", kMany) + "."},
      {"tuples that double in size", doubling + "."},
      {"many references to a long text",
       "\x80\x02" + text(long_text) + keep + repeated(recall, kMany / 2) + "."},
      {"many references to a record with a long name",
       "\x80\x02" + storage(long_name) + keep + repeated(recall, kMany / 2) + "."},
      {"dicts", "\x80\x02" + repeated("}0", 4 * kMany) + "."},
      {"many automatic memo entries", "\x80\x04N" + repeated("\x94", 8 * kMany) + "."},
      {"marks", "\x80\x02" + repeated("(", 4 * kMany) + "."},
      {"tuples", "\x80\x02" + repeated("NNN\x87" + drop, 2 * kMany) + "."},
      {"functions", "\x80\x02" + repeated("ca\nb\n0", 4 * kMany) + "."},
      {"functions with a long name", "\x80\x02" + text(long_text) + keep +
                                         repeated(recall + recall + "\x93" + drop, kMany / 2) +
                                         "."},
      {"a dict with long keys",
       "\x80\x02" + text(long_text) + keep + "}(" + repeated(recall + "N", kMany / 2) + "u."},
      {"a dict that repeats a key for many tensors of many dimensions",
       "\x80\x02" + text(std::string(900, 'x')) + keep + drop +
           tensor(storage("0"), 0, many_dimensions, many_dimensions) + "q\x02}(" +
           repeated(recall + "h\x02", kMany / 4) + "uN."},
      {"a dict of references to one dict",
       "\x80\x02}q\x02(" + repeated("X\x01\0\0\0aK\x01", 9) + "u0}(" +
           repeated(std::string("X\x01\0\0\0ah\x02", 8), kMany / 4) + "u."},
      {"many references to a tensor in a record with a long name",
       "\x80\x02" + tensor(storage(long_name), 0, "", "") + keep + repeated(recall, kMany / 2) +
           "."},
  };
  for (const Case& bomb : bombs) {
    reset_peak_memory();
    const std::size_t before = peak_memory();
    const auto begin = std::chrono::steady_clock::now();
    INFO(bomb.name);
    CHECK(refusal(bomb.pickle));
    CHECK(seconds_since(begin) < 5);
    CHECK(peak_memory() < before + (std::size_t{400} << 20));
  }
}

TEST_CASE("a dict under two keys is not ambiguous, and items added to it later are read") {
  const std::string pickle = "\x80\x02}(" + text("ema") + std::string("}q\x07", 3) +
                             text("state_dict") + std::string("h\x07", 2) + "u0h\x07(" + text("w") +
                             small_tensor() + "u.";
  CHECK(unpickle_state_dict(pickle).size() == 1);
}

TEST_CASE("objects other than weights that training scripts save are skipped") {
  const std::string command = global("os", "system") + tuple(text("touch /tmp/x"));
  const std::string eight = little_endian(3, 8) + "abc";
  const std::vector<std::pair<const char*, std::string>> others{
      {"a call", command + "R"},
      {"a class", global("builtins", "eval")},
      {"an object", global("argparse", "Namespace") + ")\x81}" + text("lr") + "K\x01sb"},
      {"an object with keyword arguments", global("pathlib", "Path") + ")}\x92"},
      {"a numpy scalar",
       global("numpy.core.multiarray", "scalar") + tuple(std::string("C\x01x")) + "R"},
      {"a Counter", global("collections", "Counter") + "}K\x03K\x01s\x85R"},
      {"a set", "\x8f(K\x01K\x02\x90"},
      {"a frozenset", "(K\x01K\x02\x91"},
      {"bytes", "\x8e" + eight},
      {"a bytearray", "\x96" + eight},
      {"a long text", "\x8d" + eight},
      {"a large integer", "\x8a\x09" + std::string(9, '\x01')},
      {"a huge integer", "\x8b" + little_endian(300, 4) + std::string(300, '\x01')},
      {"a buffer", "\x97\x98"},
      {"an extension", "\x82\x01"},
      {"values that are dropped",
       "(K\x01K\x02"
       "1NN0(0"},
      {"a value twice", "N2" + std::string("\x86")},
      {"a Python 2 string", "U" + eight.substr(0, 1) + "abc"},
      {"a list of tensors", "](" + small_tensor() + small_tensor() + "e"},
      {"a storage of another kind", "NQ"},
      {"a tuple of a thousand values", tuple(repeated("K\x01", 1000))},
      {"a tensor of another kind", global("torch._utils", "_rebuild_qtensor") + ")R"},
  };
  for (const auto& [name, code] : others) {
    INFO(name);
    const auto entries = unpickle_state_dict(
        dict(text("other") + code + text("state_dict") + "}" + text("w") + small_tensor() + "s"));
    REQUIRE(entries.size() == 1);
    CHECK(entries[0].second.problem.empty());
    const auto beside =
        unpickle_state_dict(dict(text("other") + code + text("w") + small_tensor()));
    REQUIRE(beside.size() == 2);
    CHECK_FALSE(beside[0].second.problem.empty());
    CHECK(beside[1].second.problem.empty());
  }
}

TEST_CASE("parameters of tensor subclasses, and version 3 tensors, are read as tensors") {
  const std::string hooks = kOrdered + ")R";
  const std::string arguments =
      storage("0") + integer(0) + tuple(integer(2)) + tuple(integer(1)) + "\x89" + hooks;
  const auto call = [](const std::string& module, const std::string& name,
                       const std::string& with) {
    return global(module, name) + tuple(with) + "R";
  };
  const std::string subclass = call("torch._tensor", "_rebuild_from_type_v2",
                                    kRebuild + global("mine", "Tensor") + tuple(arguments) + "}");
  const std::string untyped =
      storage("0", "UntypedStorage") + arguments.substr(storage("0").size());
  const std::vector<std::pair<const char*, std::string>> wrapped{
      {"a parameter of a tensor subclass",
       call("torch._utils", "_rebuild_parameter", subclass + "\x88" + hooks)},
      {"version 3",
       call("torch._utils", "_rebuild_tensor_v3", untyped + global("torch", "float32"))},
  };
  for (const auto& [name, code] : wrapped) {
    INFO(name);
    CHECK_FALSE(refusal(dict(text("w") + code)));
  }
}

TEST_CASE("malformed pickles are refused with the reason") {
  const auto of_protocol_2 = [](std::vector<std::string> codes) {
    for (std::string& code : codes) code = "\x80\x02" + code + ".";
    return codes;
  };
  const std::string text_without_end = "\xff\xff\xff\xff\xff\xff\xff\xff" + std::string("abc.");
  check_pickles_refused({
      {"opcode 105", {"ios\nsystem\n."}},      // INST
      {"opcode 111", of_protocol_2({"(o"})},   // OBJ
      {"opcode 80", of_protocol_2({"P0\n"})},  // PERSID
      {"opcode 73", of_protocol_2({"I3\n"})},  // INT, as text
      {"opcode 0", of_protocol_2({std::string(1, '\0')})},
      {"pops from an empty stack",
       of_protocol_2({"", "R", "Nt", "}u", "\x87", "\x93", "\x81", "(00", "N(\x85", "(", "1"})},
      {"appends to a value that is not a list", of_protocol_2({"(e"})},
      {"sets items of a value that is not a dict", of_protocol_2({"(u", "}(Nu"})},
      {"a non-empty dict of tensors",
       of_protocol_2({"N", "]", "}", "}(K\x01" + small_tensor() + "u", small_tensor(), kOrdered})},
      {"a memo entry that was never set", of_protocol_2({"h\x07", "Nq\x05h\x04"})},
      {"memo is too large", of_protocol_2({"Nr\xff\xff\xff\x7f"})},
      {"is truncated",
       {"\x80\x02G123.", "\x80\x02X" + text_without_end.substr(4),
        "\x80\x04\x8d" + text_without_end, "\x80\x04\x96" + text_without_end,
        "\x80\x02" + std::string("cno newline")}},
  });
}

TEST_CASE("whole models and unknown keys are refused with the line that converts them") {
  const std::string module = global("__main__", "Net") + ")\x81}(" + text("training") + "\x88" +
                             text("_modules") + kOrdered + ")Rub";
  const std::string weights = "}" + text("w") + small_tensor() + "s";
  check_pickles_refused({
      {"torch.save(torch.load(OLD, map_location=\"cpu\", "
       "weights_only=False).state_dict(), NEW)",
       {"\x80\x02" + module + "."}},
      {"weights_only=False)[\"model\"].state_dict(), NEW)",
       {dict(text("epoch") + "K\x01" + text("model") + module)}},
      {"its keys: \"epoch\", \"net\"; if one of them holds the weights and you trust the file, run "
       "in Python: "
       "torch.save(torch.load(OLD, map_location=\"cpu\", weights_only=False)[KEY], NEW)",
       {dict(text("epoch") + "K\x01" + text("net") + weights)}},
      {"its keys: \"epoch\", \"model\"; if one of them",
       {dict(text("epoch") + "K\x01" + text("model") + "}" + text("net") + weights + "s")}},
      {"torch.save(torch.jit.load(OLD, map_location=\"cpu\").state_dict(), NEW)",
       {"\x80\x02" + global("__torch__", "Net") + ")\x81}" + text("training") + "\x88sb."}},
  });
}

TEST_CASE("the error about a tensor that cannot be read has its name and the reason") {
  const auto as_w = [](std::vector<std::string> values) {
    for (std::string& value : values)
      value = dict(text("w") + value + text("good") + small_tensor());
    return values;
  };
  const auto call = [](const std::string& function, const std::string& arguments) {
    return global("torch._utils", function) + tuple(arguments) + "R";
  };
  const std::string one = integer(1);
  const std::string dimensions = repeated(one, 17);
  const std::string huge = integer(INT64_MAX) + integer(INT64_MAX);
  check_pickles_refused({
      {"w is a tensor in an unknown format",
       as_w({call("_rebuild_tensor_v2", ""), call("_rebuild_tensor_v2", "NNNN"),
             tensor("NQ", 0, one, one), tensor(tuple("NNN") + "Q", 0, one, one),
             tensor(storage("0"), -1, one, one), tensor(storage("0"), 0, integer(-1), one),
             tensor(storage("0"), 0, one, integer(-1)), tensor(storage("0"), 0, "N", one),
             tensor(storage("0"), 0, one, ""), tensor(storage("0"), 0, dimensions, dimensions),
             tensor(storage(std::string(1001, '0')), 0, one, one)})},
      {"w is a tensor whose shape overflows", as_w({tensor(storage("0"), INT64_MAX, huge, huge)})},
      {"w has the unsupported type torch.ComplexFloatStorage",
       as_w({tensor(storage("0", "ComplexFloatStorage"), 0, one, one)})},
      {"w has the unsupported type torch.float8_e4m3fn",
       as_w({call("_rebuild_tensor_v3", storage("0", "UntypedStorage") + integer(0) + ")))" + "N" +
                                            global("torch", "float8_e4m3fn"))})},
      {"otherwise special tensor (_rebuild_qtensor), which is not supported",
       as_w({call("_rebuild_qtensor", "")})},
      {"otherwise special tensor (_rebuild_parameter), which is not supported",
       as_w({call("_rebuild_parameter", "")})},
      {"w is not a tensor",
       as_w({call("_rebuild_parameter", "N"), global("numpy", "ndarray") + ")R", kOrdered + ")R",
             "K\x01", text("x"), "N", "}"})},
  });
}

TEST_CASE("if a key appears twice, the last value counts") {
  const std::string other = tensor(storage("9"), 0, integer(4), integer(1));
  const auto entries = unpickle_state_dict(
      dict(text("w") + small_tensor() + text("v") + small_tensor() + text("w") + other));
  REQUIRE(entries.size() == 2);
  CHECK(entries[0].first == "w");
  CHECK(entries[0].second.storage == "9");
}

}  // namespace
}  // namespace mnist_train::checkpoint
