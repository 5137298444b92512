#include "base/file.h"
#include "support/catch.h"
#include "support/temp_folder.h"

namespace mnist_train {

using namespace testing;

TEST_CASE(
    "files that are given by mistake are known by their first bytes, tables by their first line") {
  const TempFolder folder;
  const auto name_of = [&](const std::string& name, const std::string& content) {
    const auto kind = kind_of_file(folder.write(name, content));
    return kind ? kind->name : "";
  };
  const std::string rest(300, '\0');
  CHECK(name_of("a.npy", "\x93NUMPY" + rest) == "a NumPy array (.npy)");
  CHECK(name_of("a", "PK\x03\x04" + std::string(26, '\0') + "x_train.npy" + rest) ==
        "a NumPy archive (.npz)");
  CHECK(name_of("a.zip", "PK\x03\x04" + rest) == "a zip archive");
  CHECK(name_of("a.parquet", "PAR1" + rest) == "a Parquet file");
  CHECK(name_of("a.h5", "\x89HDF\r\n\x1a\n" + rest) == "an HDF5 file");
  CHECK(name_of("data_batch_1", "\x80\x02}q" + rest) == "a Python pickle");
  CHECK(name_of("a", std::string(257, '\0') + "ustar" + rest) == "a tar archive");
  CHECK(name_of("a.tar.gz", "\x1f\x8b" + rest) == "a tar archive");
  CHECK(name_of("a.csv.gz", "\x1f\x8b" + rest) == "a text table (CSV)");
  CHECK(name_of("list", "path;label\r\na.png;cat\n") == "a text table (CSV)");
  CHECK(name_of("a.csv", "label\n5\n") == "a text table (CSV)");
  CHECK(name_of("a.png", "\x89PNG\r\n" + rest) == "a PNG image");
  CHECK(name_of("a.gz", "<!DOCTYPE html>\n") == "a web page");

  CHECK(name_of("a-images-idx3-ubyte", std::string("\0\0\x08\x03", 4) + rest) == "");
  CHECK(name_of("a-images-idx3-ubyte.gz", "\x1f\x8b" + rest) == "");
  CHECK(name_of("data_batch_1.bin", "\x09" + std::string(500, '\xff') + "," + rest) == "");
  CHECK(name_of("data.mdb", std::string(16, '\0') + "\xde\xc0\xef\xbe" + rest) == "");
  CHECK(name_of("empty", "") == "");
  CHECK_FALSE(kind_of_file(folder.path()));
  CHECK_FALSE(kind_of_file(folder.path() / "nowhere"));
}

}  // namespace mnist_train
