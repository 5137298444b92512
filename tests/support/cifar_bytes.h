#pragma once

#include <cstdint>
#include <string>

#include "support/idx_bytes.h"
#include "support/temp_folder.h"

namespace mnist_train::testing {

/// A record of CIFAR-10: the label and an image of noise.
inline std::string cifar_record(int label, std::uint64_t salt = 1) {
  return static_cast<char>(label) + noise(3072, salt);
}

/// The six files of CIFAR-10 with so many records each. The label of a record is its number modulo
/// 10, its salt is its number; test records are counted on behind training records.
inline void write_cifar(const TempFolder& folder, const std::string& name, int batch_records,
                        int test_records) {
  int number = 0;
  const auto write = [&](const char* file, int records) {
    std::string content;
    for (int i = 0; i < records; ++i, ++number) {
      content += cifar_record(number % 10, static_cast<std::uint64_t>(number));
    }
    folder.write(name + '/' + file, content);
  };
  for (const char* file : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                           "data_batch_4.bin", "data_batch_5.bin"}) {
    write(file, batch_records);
  }
  write("test_batch.bin", test_records);
}

}  // namespace mnist_train::testing
