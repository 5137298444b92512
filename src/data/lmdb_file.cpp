#include "data/lmdb_file.h"

#include <fcntl.h>
#include <lmdb.h>

#include <cstring>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "base/file_kind.h"

namespace mnist_train::data {

namespace fs = std::filesystem;

namespace {

// Address space, not memory or disk: pages come as they are written.
constexpr std::size_t kMostBytes =
    sizeof(void*) >= 8 ? std::size_t{1} << 40U : std::size_t{1} << 30U;
constexpr std::int64_t kEntriesPerCommit = 10000;

using Environment = std::unique_ptr<MDB_env, decltype(&mdb_env_close)>;
using Transaction = std::unique_ptr<MDB_txn, decltype(&mdb_txn_abort)>;

// LMDB's own file format, version 1 on machines of 64 bits, as offsets in pages and entries.
constexpr std::size_t kPageHeader = 16;
constexpr std::size_t kKindAt = 10;
constexpr std::size_t kEndOfListAt = 12;
constexpr std::uint16_t kAllKinds = 0x6f;
constexpr std::size_t kMagicAt = 16;
constexpr std::uint32_t kMagic = 0xbeefc0de;
constexpr std::size_t kVersionAt = 20;
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kPageSizeAt = 40;
constexpr std::size_t kLevelsAt = 94;
constexpr std::size_t kEntriesAt = 120;
constexpr std::size_t kRootAt = 128;
constexpr std::size_t kLastPageAt = 136;
constexpr std::size_t kTransactionAt = 144;
constexpr std::size_t kMetaEnd = 152;
constexpr unsigned kMostLevels = 32;
constexpr std::size_t kNodeBytes = 8;  // before the key
constexpr std::size_t kNodeFlagsAt = 4;
constexpr std::size_t kKeySizeAt = 6;
constexpr std::uint16_t kOnPagesOfItsOwn = 1;

template <class Number>
Number number(std::span<const std::uint8_t> bytes, std::size_t at) {
  Number value{};
  std::memcpy(&value, bytes.subspan(at, sizeof value).data(), sizeof value);
  return value;
}

fs::path data_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) ? path / "data.mdb" : path;
}

/// Throws while another process is opening the database, which locks its lock file for itself.
void refuse_locked(const fs::path& file) {
  fs::path lock_path = file.parent_path() / "lock.mdb";
  if (file.filename() != "data.mdb") lock_path = file.string() + "-lock";
  const UniqueFd lock(::open(lock_path.c_str(), O_RDONLY | O_CLOEXEC));
  struct flock probe {};
  probe.l_type = F_RDLCK;
  probe.l_whence = SEEK_SET;
  if (!lock.valid() || ::fcntl(lock.get(), F_GETLK, &probe) != 0 || probe.l_type == F_UNLCK) return;
  throw Error(ExitCode::kData, lock_path.string() + ": locked by process " +
                                   std::to_string(probe.l_pid) + "; the database is in use");
}

}  // namespace

struct LmdbHandles {
  Environment environment{nullptr, &mdb_env_close};
  Transaction transaction{nullptr, &mdb_txn_abort};
  MDB_dbi table = 0;
};

LmdbReader::LmdbReader(const fs::path& path) : name_(data_file(path).string()) {
  const fs::path file = data_file(path);
  std::error_code ignored;
  if (file != path && !fs::exists(file, ignored)) {
    throw Error(ExitCode::kData, name_ + ": no such file" + other_files_in(path));
  }
  file_ = MappedFile::open(file, ExitCode::kData);
  refuse_locked(file);
  read_meta();
}

/// Reads the later one of the two pages at the beginning, which say where the table is.
void LmdbReader::read_meta() {
  const std::span<const std::uint8_t> bytes = file_.bytes();
  const auto refuse = [this](const char* why) {
    throw Error(ExitCode::kData, name_ + ": cannot open the LMDB: " + why);
  };
  const auto require_meta = [&](std::size_t at) {
    if (bytes.size() < at + kMetaEnd || number<std::uint32_t>(bytes, at + kMagicAt) != kMagic) {
      refuse("not an LMDB file");
    }
    if (number<std::uint32_t>(bytes, at + kVersionAt) != kVersion) {
      refuse("written by another version of LMDB");
    }
  };
  require_meta(0);
  page_size_ = number<std::uint32_t>(bytes, kPageSizeAt);
  if (page_size_ < 512 || page_size_ > 32768 || (page_size_ & (page_size_ - 1)) != 0) {
    fail(0, "pages of " + std::to_string(page_size_) + " bytes");
  }
  require_meta(page_size_);
  const auto transaction = [&](std::size_t at) {
    return number<std::uint64_t>(bytes, at + kTransactionAt);
  };
  const std::size_t meta = transaction(0) < transaction(page_size_) ? page_size_ : 0;
  const auto last_page = number<std::uint64_t>(bytes, meta + kLastPageAt);
  if (bytes.size() / page_size_ <= last_page) {
    throw Error(ExitCode::kData, name_ + ": truncated: " + std::to_string(bytes.size()) +
                                     " bytes, but its last page, counted from 0, is " +
                                     std::to_string(last_page) + " of " +
                                     std::to_string(page_size_) + " bytes each");
  }
  levels_ = number<std::uint16_t>(bytes, meta + kLevelsAt);
  root_ = number<std::uint64_t>(bytes, meta + kRootAt);
  const auto entries = number<std::uint64_t>(bytes, meta + kEntriesAt);
  if (entries > bytes.size() / kNodeBytes || levels_ > kMostLevels ||
      (entries == 0) != (levels_ == 0)) {
    fail(meta / page_size_, "a table of " + std::to_string(entries) + " entries in " +
                                std::to_string(levels_) + " levels");
  }
  entries_ = static_cast<std::int64_t>(entries);
}

void LmdbReader::fail(std::uint64_t page, const std::string& problem) const {
  throw Error(ExitCode::kData,
              name_ + ": page " + std::to_string(page) + ": the LMDB is damaged: " + problem);
}

/// Returns a page of one kind, and all that follows it in the file.
std::span<const std::uint8_t> LmdbReader::page(std::uint64_t index, PageKind kind) const {
  const auto bytes = file_.bytes();
  if (index >= bytes.size() / page_size_) fail(index, "it lies behind the end of the file");
  const auto found = bytes.subspan(static_cast<std::size_t>(index) * page_size_);
  if (number<std::uint64_t>(found, 0) != index) fail(index, "it has another page's number");
  if ((number<std::uint16_t>(found, kKindAt) & kAllKinds) != static_cast<unsigned>(kind)) {
    fail(index, "it is of another kind than the tree says");
  }
  return found;
}

/// Visits the entries below a page that is `levels` above the bottom of the tree, 1 for a leaf.
/// Every leaf has an entry, so even pages in a circle come to an end.
void LmdbReader::visit_page(std::uint64_t index, unsigned levels, Walk& walk) const {
  const bool is_leaf = levels == 1;
  const auto found = page(index, is_leaf ? PageKind::kLeaf : PageKind::kBranch);
  const std::size_t end_of_list = number<std::uint16_t>(found, kEndOfListAt);
  if (end_of_list < kPageHeader + 2 || end_of_list > page_size_) fail(index, "an impossible list");
  for (std::size_t at = kPageHeader; at + 2 <= end_of_list && walk.visited < walk.most; at += 2) {
    const std::size_t place = number<std::uint16_t>(found, at);
    if (place < end_of_list || place + kNodeBytes > page_size_) fail(index, "an impossible place");
    const auto node = found.subspan(place, page_size_ - place);
    if (is_leaf) {
      if (++walk.visited > entries_) fail(index, "more entries than the table has");
      visit_entry(index, node, walk.visit);
    } else {
      const auto below = number<std::uint32_t>(node, 0) |
                         std::uint64_t{number<std::uint16_t>(node, kNodeFlagsAt)} << 32U;
      visit_page(below, levels - 1, walk);
    }
  }
}

/// `node`: all of the page from the entry on.
void LmdbReader::visit_entry(std::uint64_t index, std::span<const std::uint8_t> node,
                             const Visit& visit) const {
  const std::size_t size = number<std::uint32_t>(node, 0);
  const auto flags = number<std::uint16_t>(node, kNodeFlagsAt);
  const std::size_t key_size = number<std::uint16_t>(node, kKeySizeAt);
  if (key_size > node.size() - kNodeBytes) fail(index, "a key beyond its end");
  if ((flags & ~kOnPagesOfItsOwn) != 0) fail(index, "an entry that is no plain key and value");
  const std::string_view key(reinterpret_cast<const char*>(node.data() + kNodeBytes), key_size);
  auto value = node.subspan(kNodeBytes + key_size);
  if (flags == kOnPagesOfItsOwn) {
    if (value.size() < sizeof(std::uint64_t)) fail(index, "a value beyond its end");
    value = page(number<std::uint64_t>(value, 0), PageKind::kValue).subspan(kPageHeader);
  }
  if (size > value.size()) fail(index, "a value beyond its end");
  visit(key, value.first(size));
}

void LmdbReader::for_each(const Visit& visit) const {
  Walk walk{visit, /*most=*/std::numeric_limits<std::int64_t>::max()};
  if (entries_ > 0) visit_page(root_, levels_, walk);
  if (walk.visited == entries_) return;
  throw Error(ExitCode::kData, name_ + ": the LMDB is damaged: " + std::to_string(walk.visited) +
                                   " of its " + std::to_string(entries_) + " entries are there");
}

std::optional<std::span<const std::uint8_t>> LmdbReader::first() const {
  std::optional<std::span<const std::uint8_t>> found;
  const Visit keep = [&](std::string_view, std::span<const std::uint8_t> value) { found = value; };
  Walk walk{keep, /*most=*/1};
  if (entries_ > 0) visit_page(root_, levels_, walk);
  return found;
}

LmdbWriter::LmdbWriter(const fs::path& folder)
    : name_(folder.string()), handles_(std::make_unique<LmdbHandles>()) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw Error(ExitCode::kRunFailed, name_ + ": " + error.message());
  MDB_env* environment = nullptr;
  require(mdb_env_create(&environment), "create");
  handles_->environment.reset(environment);
  require(mdb_env_set_mapsize(environment, kMostBytes), "reserve");
  // Nothing is waited for until the end: a database that was not finished is thrown away. No other
  // process knows it yet, and a lock file, which is mapped, would end this one on a full disk.
  require(mdb_env_open(environment, folder.c_str(), MDB_NOSYNC | MDB_NOLOCK, 0644), "open");
  begin();
}

LmdbWriter::~LmdbWriter() = default;

void LmdbWriter::require(int result, const char* action) const {
  if (result == 0) return;
  throw Error(ExitCode::kRunFailed,
              name_ + ": cannot " + action + " the LMDB: " + mdb_strerror(result));
}

void LmdbWriter::begin() {
  MDB_txn* transaction = nullptr;
  require(mdb_txn_begin(handles_->environment.get(), nullptr, 0, &transaction), "write");
  handles_->transaction.reset(transaction);
  require(mdb_dbi_open(transaction, nullptr, 0, &handles_->table), "write");
}

void LmdbWriter::commit() {
  require(mdb_txn_commit(handles_->transaction.release()), "write");
  uncommitted_ = 0;
}

void LmdbWriter::append(std::string_view key, std::string_view value) {
  // LMDB takes pointers to what it does not change.
  MDB_val stored_key{key.size(), const_cast<char*>(key.data())};
  MDB_val stored{value.size(), const_cast<char*>(value.data())};
  require(mdb_put(handles_->transaction.get(), handles_->table, &stored_key, &stored, MDB_APPEND),
          "write");
  if (++uncommitted_ < kEntriesPerCommit) return;
  commit();
  begin();
}

void LmdbWriter::finish() {
  commit();
  require(mdb_env_sync(handles_->environment.get(), 1), "sync");
}

}  // namespace mnist_train::data
