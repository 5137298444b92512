#include <lmdb.h>

#include <cstring>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>

#include "base/file.h"
#include "base/hash.h"
#include "base/print.h"
#include "data/convert.h"
#include "data/sources.h"

namespace mnist_train::data {

namespace {

// The structs of LMDB's file format, version 1 on 64-bit machines. Its databases are tables here.
struct PageHeader {
  std::uint64_t number;
  std::uint16_t padding;
  std::uint16_t kind;
  std::uint16_t end_of_list;  // end of the entry offsets, which follow the header
  std::uint16_t begin_of_entries;
};
struct TableInfo {
  std::uint32_t page_size;  // set in the first table only
  std::uint16_t flags;
  std::uint16_t levels;  // depth of the page tree
  std::array<std::uint64_t, 3> page_counts;
  std::uint64_t entries;
  std::uint64_t root;  // page number
};
struct MetaPage {
  PageHeader header;
  std::uint32_t magic;
  std::uint32_t version;
  std::array<std::uint64_t, 2> map;
  TableInfo free_pages;
  TableInfo table;
  std::uint64_t last_page;
  std::uint64_t transaction;
};
struct NodeHeader {    // precedes an entry's key
  std::uint32_t size;  // of the value; in branch pages, `size` and `flags` hold a page number
  std::uint16_t flags;
  std::uint16_t key_size;
};
static_assert(sizeof(MetaPage) == 152 && sizeof(NodeHeader) == 8);
constexpr std::uint16_t kAllKinds = 0x6f;
constexpr std::uint32_t kLmdbMagic = 0xbeefc0de;
constexpr std::uint32_t kVersion = 1;
constexpr unsigned kMaxLevels = 32;
// Flags of an entry.
constexpr std::uint16_t kOnOverflowPages = 1;
constexpr std::uint16_t kNamedDatabase = 2;

/// Copies a possibly unaligned number or struct.
template <class Stored>
Stored read_at(Bytes bytes, std::size_t at) {
  Stored value{};
  std::memcpy(&value, bytes.subspan(at, sizeof value).data(), sizeof value);
  return value;
}

struct LmdbEntry {
  std::string_view key;
  Bytes value;
};

// Fields of TensorProtos and TensorProto in caffe2.proto.
enum Caffe2Field : protozero::pbf_tag_type {
  kProtos = 1,
  kDims = 1,
  kDataType = 2,
  kInt32Data = 4,
  kStringData = 6,
  kInt64Data = 10,
};
enum DataType : std::int32_t { kInt32 = 2, kByte = 3, kString = 4, kInt64 = 10 };

struct Caffe2Tensor {
  std::int32_t data_type = 0;
  std::optional<protozero::data_view> text;
  std::optional<std::int64_t> number;
  bool has_more = false;  // a second string or number

  void add_number(std::int64_t value) {
    has_more = has_more || number.has_value();
    number = value;
  }
};

Caffe2Tensor read_tensor(protozero::pbf_reader reader) {
  Caffe2Tensor tensor;
  while (reader.next()) {
    switch (reader.tag()) {
      case kDataType:
        tensor.data_type = reader.get_enum();
        break;
      case kStringData:
        tensor.has_more = tensor.has_more || tensor.text.has_value();
        tensor.text = reader.get_view();
        break;
      case kInt32Data:  // both are varints, packed into one field or one per field
      case kInt64Data:
        if (reader.wire_type() == protozero::pbf_wire_type::length_delimited) {
          for (const auto value : reader.get_packed_int64()) tensor.add_number(value);
        } else {
          tensor.add_number(reader.get_int64());
        }
        break;
      default:
        reader.skip();
    }
  }
  return tensor;
}

/// A memory-mapped LMDB. It is parsed here because the LMDB library trusts the file: damaged pages
/// could make it read outside the mapping.
class LmdbSource : public ImageSource {
 public:
  LmdbSource(const fs::path& path, BadSamples& bad) {
    const fs::path file = is_folder(path) ? path / "data.mdb" : path;
    name_ = file.string();
    if (file != path && !path_exists(file)) {
      fail_data("{}: contains no data.mdb{}", path.string(), other_files_in(path));
    }
    file_ = MappedFile::open(file, ExitCode::kData);
    read_meta();
    samples_.reserve(table_.entries);
    if (table_.entries > 0) add_page(table_.root, table_.levels);
    if (samples_.size() != table_.entries) {
      fail_data("{}: the LMDB is damaged: its entry count is {}, but its pages contain {}", name_,
                table_.entries, samples_.size());
    }
    Hasher hasher;
    for (const auto& [key, value] : samples_) {
      try {
        const Caffe2Record record = parse_caffe2_record(value, name_of_key(key));
        const auto label = static_cast<std::int32_t>(record.label);
        const std::size_t size = record.image.size();
        hasher.update(key.data(), key.size());
        hasher.update(&size, sizeof size);
        hasher.update(&label, sizeof label);
        samples_[labels_.size()] = {key, record.image};
        labels_.push_back(label);
        classes_ = std::max<std::int64_t>(classes_, record.label + 1);
      } catch (const Error& error) {
        bad.add(error.what());
      }
    }
    if (labels_.empty()) fail_data("{}: contains no usable samples", name_);
    samples_.resize(labels_.size());
    hash_ = hasher.named_digest();
  }

  std::string sample_name(std::int64_t sample) const override {
    return name_of_key(samples_[static_cast<std::size_t>(sample)].key);
  }

  Bytes read(std::int64_t sample, Buffer& /*buffer*/) const override {
    return samples_[static_cast<std::size_t>(sample)].value;
  }

 private:
  enum class PageKind : unsigned { kBranch = 1, kLeaf = 2, kOverflow = 4 };

  /// Locates the table using the newer of the two meta pages at the start of the file.
  void read_meta() {
    const std::size_t size = file_.bytes().size();
    const MetaPage first = meta_at(0);
    page_size_ = first.free_pages.page_size;
    if (page_size_ < 512 || page_size_ > 32768 || (page_size_ & (page_size_ - 1)) != 0) fail(0);
    const MetaPage second = meta_at(page_size_);
    const bool first_is_later = first.transaction >= second.transaction;
    const MetaPage& meta = first_is_later ? first : second;
    if (size / page_size_ <= meta.last_page) {
      fail_data("{}: truncated: the file has {} bytes, but its pages 0 to {} have {} bytes each",
                name_, size, meta.last_page, page_size_);
    }
    table_ = meta.table;
    if (table_.entries > size / sizeof(NodeHeader) || table_.levels > kMaxLevels ||
        (table_.entries == 0) != (table_.levels == 0)) {
      fail(first_is_later ? 0 : 1);
    }
  }

  MetaPage meta_at(std::size_t at) const {
    const Bytes bytes = file_.bytes();
    const auto refuse = [this](const char* problem) {
      fail_data("{}: cannot open the LMDB: {}", name_, problem);
    };
    if (bytes.size() < at + sizeof(MetaPage)) refuse("not an LMDB file");
    const auto meta = read_at<MetaPage>(bytes, at);
    if (meta.magic != kLmdbMagic) refuse("not an LMDB file");
    if (meta.version != kVersion) refuse("written by an unsupported version of LMDB");
    return meta;
  }

  /// Returns the file's bytes from the start of a page of the given kind.
  Bytes page(std::uint64_t index, PageKind kind) const {
    const Bytes bytes = file_.bytes();
    if (index >= bytes.size() / page_size_) fail(index);
    const Bytes found = bytes.subspan(static_cast<std::size_t>(index) * page_size_);
    const auto header = read_at<PageHeader>(found, 0);
    const bool is_kind = (header.kind & kAllKinds) == static_cast<unsigned>(kind);
    if (header.number != index || !is_kind) fail(index);
    return found;
  }

  /// Adds the entries below a page. `levels`: its height in the tree, 1 for a leaf. Terminates even
  /// if damaged pages refer to each other, because both the depth and the number of entries are
  /// limited, and every leaf has an entry.
  void add_page(std::uint64_t index, unsigned levels) {
    const bool is_leaf = levels == 1;
    const Bytes found = page(index, is_leaf ? PageKind::kLeaf : PageKind::kBranch);
    const std::size_t end_of_list = read_at<PageHeader>(found, 0).end_of_list;
    if (end_of_list < sizeof(PageHeader) + 2 || end_of_list > page_size_) fail(index);
    for (std::size_t at = sizeof(PageHeader); at + 2 <= end_of_list; at += 2) {
      const std::size_t offset = read_at<std::uint16_t>(found, at);
      if (offset < end_of_list || offset + sizeof(NodeHeader) > page_size_) fail(index);
      const Bytes node = found.subspan(offset, page_size_ - offset);
      if (is_leaf) {
        if (samples_.size() == table_.entries) fail(index);
        samples_.push_back(entry_in(index, node));
      } else {
        const auto [low, high, key_size] = read_at<NodeHeader>(node, 0);
        add_page(low | std::uint64_t{high} << 32U, levels - 1);
      }
    }
  }

  /// `node`: the rest of the page, starting at the entry.
  LmdbEntry entry_in(std::uint64_t index, Bytes node) const {
    const auto [size, flags, key_size] = read_at<NodeHeader>(node, 0);
    const Bytes rest = node.subspan(sizeof(NodeHeader));
    if (key_size > rest.size() || flags > kNamedDatabase) fail(index);
    const std::string_view key = text_of(rest.first(key_size));
    if (flags == kNamedDatabase) {
      fail_data("{}: is a named database; the samples must be in the file's main database",
                name_of_key(key));
    }
    Bytes value = rest.subspan(key_size);
    if (flags == kOnOverflowPages) {
      if (value.size() < sizeof(std::uint64_t)) fail(index);
      value =
          page(read_at<std::uint64_t>(value, 0), PageKind::kOverflow).subspan(sizeof(PageHeader));
    }
    if (size > value.size()) fail(index);
    return {key, value.first(size)};
  }

  [[noreturn]] void fail(std::uint64_t page) const {
    fail_data("{}: page {}: the LMDB is damaged", name_, page);
  }

  std::string name_of_key(std::string_view key) const {
    constexpr std::size_t kMaxShown = 64;  // a damaged file may contain any key
    return name_ + ": key " + on_one_line(key.substr(0, kMaxShown)) +
           (key.size() > kMaxShown ? "…" : "");
  }

  MappedFile file_;
  std::size_t page_size_ = 0;
  TableInfo table_{};
  std::vector<LmdbEntry> samples_;  // after construction, values contain only the pictures
};

}  // namespace

std::shared_ptr<ImageSource> open_lmdb(const fs::path& path, BadSamples& bad) {
  return std::make_shared<LmdbSource>(path, bad);
}

Caffe2Record parse_caffe2_record(Bytes bytes, const std::string& name) {
  const auto* begin = reinterpret_cast<const char*>(bytes.data());
  protozero::pbf_reader message(begin, bytes.size());
  std::optional<protozero::data_view> image;
  std::optional<std::int64_t> label;
  std::size_t offset = 0;
  const auto refuse = [&](const std::string& problem) {
    fail_data("{}: byte {} of the record: {}", name, offset, problem);
  };
  try {
    while (message.next()) {
      if (message.tag() != kProtos) {
        message.skip();
        continue;
      }
      const protozero::data_view view = message.get_view();
      offset = static_cast<std::size_t>(view.data() - begin);
      const Caffe2Tensor tensor = read_tensor(protozero::pbf_reader(view));
      const bool is_label = tensor.data_type == kInt32 || tensor.data_type == kInt64;
      if (tensor.data_type == kString && tensor.text) {
        if (image || tensor.has_more) refuse("contains more than one image");
        image = tensor.text;
      } else if (is_label && tensor.number) {
        if (label || tensor.has_more) refuse("contains more than one label; expected one number");
        label = tensor.number;
      } else if (tensor.data_type == kByte) {
        refuse("contains raw pixels (data_type BYTE); expected an encoded image (STRING)");
      } else {
        refuse("contains a tensor (data_type " + std::to_string(tensor.data_type) +
               ") that is empty or is neither an image (STRING) nor a label (INT32, INT64)");
      }
    }
  } catch (const protozero::exception& error) {
    refuse(std::string("is not a TensorProtos message (") + error.what() + ")");
  }
  offset = image && label ? offset : bytes.size();
  if (!image) refuse("has no image");
  if (!label) refuse("has no label");
  if (*label < 0 || *label >= settings::kMaxClasses) {
    refuse(fmt::format("label {} is out of range (0 to {})", *label, settings::kMaxClasses - 1));
  }
  return {{reinterpret_cast<const std::uint8_t*>(image->data()), image->size()}, *label};
}

std::string write_caffe2_record(const std::string& image, std::int32_t label) {
  const auto tensor = [](DataType type) {
    std::string bytes;
    protozero::pbf_writer writer(bytes);
    writer.add_int64(kDims, 1);
    writer.add_enum(kDataType, type);
    return bytes;
  };
  std::string image_tensor = tensor(kString);
  protozero::pbf_writer(image_tensor).add_bytes(kStringData, image);
  std::string label_tensor = tensor(kInt32);
  protozero::pbf_writer(label_tensor).add_packed_int32(kInt32Data, &label, &label + 1);
  std::string record;
  protozero::pbf_writer writer(record);
  writer.add_message(kProtos, image_tensor);
  writer.add_message(kProtos, label_tensor);
  return record;
}

void write_lmdb(const fs::path& folder, std::int64_t count, const EntryAt& entry_at) {
  // Address space, not memory or disk: pages are allocated as they are written.
  constexpr std::size_t kMaxBytes = std::size_t{1} << (sizeof(void*) >= 8 ? 40U : 30U);
  constexpr std::int64_t kEntriesPerCommit = 10000;
  const auto require = [&folder](int result, const char* action) {
    if (result == 0) return;
    throw Error(ExitCode::kRunFailed, fmt::format("{}: cannot {} the LMDB: {}", folder.string(),
                                                  action, mdb_strerror(result)));
  };
  make_folder(folder, ExitCode::kRunFailed);
  MDB_env* environment = nullptr;
  require(mdb_env_create(&environment), "create");
  const std::unique_ptr<MDB_env, void (*)(MDB_env*)> owner(environment, &mdb_env_close);
  require(mdb_env_set_mapsize(environment, kMaxBytes), "set the size of");
  // Syncs only at the end, because an unfinished database is discarded. Uses no lock file: no other
  // process uses the database, and writing to the mapped lock file on a full disk would be fatal.
  require(mdb_env_open(environment, folder.c_str(), MDB_NOSYNC | MDB_NOLOCK, 0666), "open");
  for (std::int64_t number = 0; number < count;) {
    MDB_txn* begun = nullptr;
    require(mdb_txn_begin(environment, nullptr, 0, &begun), "write");
    std::unique_ptr<MDB_txn, void (*)(MDB_txn*)> transaction(begun, &mdb_txn_abort);
    MDB_dbi table = 0;
    require(mdb_dbi_open(begun, nullptr, 0, &table), "write");
    for (const auto end = std::min(number + kEntriesPerCommit, count); number < end; ++number) {
      auto [key, value] = entry_at(number);
      MDB_val stored_key{key.size(), key.data()};
      MDB_val stored{value.size(), value.data()};
      require(mdb_put(begun, table, &stored_key, &stored, MDB_APPEND), "write");
    }
    require(mdb_txn_commit(transaction.release()), "write");
  }
  require(mdb_env_sync(environment, 1), "sync");
}

}  // namespace mnist_train::data
