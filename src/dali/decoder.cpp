#include <dali/dali.h>
#include <fcntl.h>
#include <unistd.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>

#include "base/file.h"
#include "base/system.h"
#include "data/image_decoder.h"

// Registers DALI's operators. No header of the C API declares this function.
extern "C" void daliInitOperators();  // NOLINT(readability-identifier-naming)

namespace mnist_train::dali {

namespace {

/// Frees one of DALI's handles.
struct FreeHandle {
  void operator()(daliPipeline_h handle) const { (void)daliPipelineDestroy(handle); }
  void operator()(daliPipelineOutputs_h handle) const { (void)daliPipelineOutputsDestroy(handle); }
  void operator()(daliTensorList_h handle) const { (void)daliTensorListDecRef(handle, nullptr); }
  void operator()(daliTensor_h handle) const { (void)daliTensorDecRef(handle, nullptr); }
};
template <typename Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, FreeHandle>;

constexpr const char* kInput = "encoded";

void require(daliResult_t result, ExitCode code = ExitCode::kRunFailed) {
  if (result == DALI_SUCCESS) return;
  throw Error(code, std::string("NVIDIA DALI: ") + daliGetLastErrorMessage());
}

void initialize() {
  static std::once_flag once;
  std::call_once(once, [] {
    require(daliInit());
    daliInitOperators();
  });
}

/// Discards this process's standard error during its lifetime.
class QuietStderr {
 public:
  QuietStderr() : saved_(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)) {
    const UniqueFd nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    if (saved_.valid() && nowhere.valid()) ::dup2(nowhere.get(), STDERR_FILENO);
  }
  QuietStderr(const QuietStderr&) = delete;
  QuietStderr& operator=(const QuietStderr&) = delete;
  ~QuietStderr() {
    if (saved_.valid()) ::dup2(saved_.get(), STDERR_FILENO);
  }

 private:
  UniqueFd saved_;
};

daliArgDesc_t argument(const char* name, daliDataType_t type, std::int64_t value) {
  return {.name = name, .dtype = type, .ivalue = value};
}

/// A DALI pipeline: external input -> decoders.Image -> Resize (if `fits_size`) ->
/// CropMirrorNormalize (if RGB; outputs colour planes). DALI does not select, shuffle or pad
/// samples. With a GPU, the decoder is `mixed` and the other operators run on the GPU.
class Pipeline {
 public:
  /// Builds a pipeline for up to `max_batch` samples. Throws Error(kRunFailed) with DALI's message.
  Pipeline(const data::ImageDecoderSetup& setup, std::size_t max_batch)
      : setup_(setup), max_batch_(max_batch) {
    // DALI prints long warnings about missing codecs (JPEG 2000, TIFF).
    const QuietStderr quiet;
    initialize();
    daliPipelineParams_t parameters{};
    DALI_SET_PARAM(parameters, max_batch_size, static_cast<int>(max_batch_));
    DALI_SET_PARAM(parameters, num_threads, setup_.threads);
    // Must not be set without a GPU.
    if (setup_.gpu) DALI_SET_PARAM(parameters, device_id, *setup_.gpu);
    DALI_SET_PARAM(parameters, exec_type, DALI_EXEC_DYNAMIC);
    constexpr int kDepth = 2;  // batches
    DALI_SET_PARAM(parameters, prefetch_queue_depths, (daliPrefetchQueueSizes_t{kDepth, kDepth}));
    daliPipeline_h pipeline = nullptr;
    require(daliPipelineCreate(&pipeline, &parameters));
    pipeline_.reset(pipeline);
    daliPipelineIODesc_t input{};
    input.name = kInput;
    input.device = DALI_STORAGE_CPU;
    input.dtype_present = 1;
    input.dtype = DALI_UINT8;
    input.ndim_present = 1;
    input.ndim = 1;
    require(daliPipelineAddExternalInput(pipeline, &input));
    last_output_ = {kInput, DALI_STORAGE_CPU};
    add_operators();
    daliPipelineIODesc_t output{};
    output.name = last_output_.name;
    output.device = last_output_.device_type;
    require(daliPipelineSetOutputs(pipeline, 1, &output));
    require(daliPipelineBuild(pipeline));
  }

  std::size_t max_batch() const { return max_batch_; }

  /// Starts decoding a batch of encoded files, which must stay valid until the batch is popped.
  void feed(const std::vector<data::Bytes>& files) {
    std::vector<std::int64_t> sizes(files.size());
    std::vector<daliTensorDesc_t> samples(files.size());
    for (std::size_t i = 0; i < files.size(); ++i) {
      sizes[i] = static_cast<std::int64_t>(files[i].size());
      samples[i].ndim = 1;
      samples[i].shape = &sizes[i];
      samples[i].dtype = DALI_UINT8;
      samples[i].layout = "";                                        // null crashes
      samples[i].data = const_cast<std::uint8_t*>(files[i].data());  // DALI only reads it
    }
    daliBufferPlacement_t host{};
    host.device_type = DALI_STORAGE_CPU;
    daliTensorList_h list = nullptr;
    require(daliTensorListCreate(&list, host));
    const Owned<daliTensorList_h> owner(list);
    require(daliTensorListAttachSamples(list, static_cast<int>(files.size()), 1, DALI_UINT8, "",
                                        samples.data(), nullptr));
    require(daliPipelineFeedInput(pipeline_.get(), kInput, list, nullptr, DALI_FEED_INPUT_NO_COPY,
                                  nullptr));
    require(daliPipelineRun(pipeline_.get()));
  }
  /// Waits for the oldest batch in the pipeline. DALI owns the batch's memory and reuses it when
  /// the last `owner` is gone. Throws Error(kData) if decoding fails, which breaks the pipeline.
  data::DecodedBatch pop() {
    daliPipelineOutputs_h popped = nullptr;
    require(daliPipelinePopOutputs(pipeline_.get(), &popped), ExitCode::kData);
    const Owned<daliPipelineOutputs_h> outputs(popped);
    daliTensorList_h got = nullptr;
    require(daliPipelineOutputsGet(popped, &got, 0));
    const Owned<daliTensorList_h> list(got);
    // Fails unless the samples are contiguous; samples of equal size are.
    daliTensor_h view = nullptr;
    require(daliTensorListViewAsTensor(got, &view));
    std::shared_ptr<const void> owner(view, [](daliTensor_h tensor) { FreeHandle{}(tensor); });
    daliTensorDesc_t description{};
    require(daliTensorGetDesc(view, &description));
    return {static_cast<const std::uint8_t*>(description.data), std::move(owner), {}};
  }

 private:
  void add_operators() {
    const data::ImageGeometry& geometry = setup_.images->geometry;
    const bool gray = geometry.channels == 1;
    constexpr std::int64_t kRgb = 0;  // DALIImageType, defined only in C++ headers
    constexpr std::int64_t kGray = 2;
    // All images here are upright; see read_sample. Chroma is upsampled as in src/imaging.
    add_operator("decoders__Image", setup_.gpu ? DALI_BACKEND_MIXED : DALI_BACKEND_CPU, "decoded",
                 {argument("output_type", DALI_INT32, gray ? kGray : kRgb),
                  argument("adjust_orientation", DALI_BOOL, 0),
                  argument("jpeg_fancy_upsampling", DALI_BOOL, 1)});
    const daliBackend_t backend = setup_.gpu ? DALI_BACKEND_GPU : DALI_BACKEND_CPU;
    if (geometry.fits_size) {
      const std::array<float, 2> size{static_cast<float>(geometry.height),
                                      static_cast<float>(geometry.width)};
      daliArgDesc_t sizes{};
      sizes.name = "size";
      sizes.dtype = DALI_FLOAT_VEC;
      sizes.size = static_cast<std::int64_t>(size.size());
      sizes.arr = size.data();
      add_operator("Resize", backend, "resized", {sizes});
    }
    if (gray) return;  // one plane is the same in either layout
    const daliArgDesc_t layout{.name = "output_layout", .dtype = DALI_STRING, .str = "CHW"};
    add_operator("CropMirrorNormalize", backend, "planes",
                 {argument("dtype", DALI_INT32, DALI_UINT8), layout});
  }

  void add_operator(const char* schema, daliBackend_t backend, const char* output,
                    const std::vector<daliArgDesc_t>& arguments) {
    const daliIODesc_t out{output,
                           backend == DALI_BACKEND_CPU ? DALI_STORAGE_CPU : DALI_STORAGE_GPU};
    daliOperatorDesc_t description{};
    description.schema_name = schema;
    description.backend = backend;
    description.num_inputs = 1;
    description.inputs = &last_output_;
    description.num_outputs = 1;
    description.outputs = &out;
    description.num_args = static_cast<int>(arguments.size());
    description.args = arguments.data();
    require(daliPipelineAddOperator(pipeline_.get(), &description));
    last_output_ = out;
  }

  data::ImageDecoderSetup setup_;
  std::size_t max_batch_;
  Owned<daliPipeline_h> pipeline_;
  daliIODesc_t last_output_{};  // input of the next operator
};

// While one batch is being decoded, the next one waits in DALI.
constexpr std::size_t kMaxFed = 2;

/// Decodes with NVIDIA DALI. One thread reads the files and runs the pipeline. As in the built-in
/// decoders, each file's header is checked first. Pictures that DALI might decode differently, and
/// whole batches on which it fails, are decoded by the built-in decoders and passed to DALI as PNG.
class DaliDecoder : public data::ImageDecoder {
 public:
  explicit DaliDecoder(const data::ImageDecoderSetup& setup) : setup_(setup) {
    (void)pipeline_for(1);  // reports a broken installation immediately
    thread_ = start_thread([this] { work(); });
  }
  DaliDecoder(const DaliDecoder&) = delete;
  DaliDecoder& operator=(const DaliDecoder&) = delete;
  ~DaliDecoder() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  bool decodes_to_gpu() const override { return setup_.gpu.has_value(); }

 protected:
  std::future<data::DecodedBatch> begin(std::vector<std::int64_t> samples) override {
    auto batch = std::make_unique<FileBatch>(std::move(samples));
    std::future<data::DecodedBatch> result = batch->result.get_future();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      waiting_.push_back(std::move(batch));
    }
    changed_.notify_all();
    return result;
  }

 private:
  struct FileBatch {
    explicit FileBatch(std::vector<std::int64_t> wanted)
        : samples(std::move(wanted)), buffers(samples.size()), files(samples.size()) {}

    std::vector<std::int64_t> samples;
    std::vector<data::Buffer> buffers;  // files that are not memory-mapped, and PNGs
    std::vector<data::Bytes> files;
    std::promise<data::DecodedBatch> result{};
  };
  using FileBatches = std::deque<std::unique_ptr<FileBatch>>;

  void work() {
    for (;;) {
      std::unique_ptr<FileBatch> batch = next_batch();
      if (!batch && fed_.empty()) break;
      try {
        if (batch) {
          start(std::move(batch));
        } else {
          finish_first();
        }
      } catch (...) {
        // A pipeline is unusable after a failure.
        for (const auto& each : fed_) each->result.set_exception(std::current_exception());
        pipeline_.reset();  // reads the memory of the batches in it
        fed_.clear();
      }
    }
  }

  /// Returns the next batch to feed, or null if none is waiting, the pipeline is full, or the
  /// decoder is shutting down. If the pipeline is empty, waits for a batch or the shutdown.
  std::unique_ptr<FileBatch> next_batch() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (fed_.size() == kMaxFed) return nullptr;
    if (fed_.empty()) changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
    if (ending_) waiting_.clear();
    if (waiting_.empty()) return nullptr;
    std::unique_ptr<FileBatch> batch = std::move(waiting_.front());
    waiting_.pop_front();
    return batch;
  }

  void start(std::unique_ptr<FileBatch> batch) {
    const bool usable = read(*batch, /*as_png=*/false).empty();
    if (!usable || !pipeline_ || pipeline_->max_batch() < batch->samples.size()) {
      while (!fed_.empty()) finish_first();
    }
    if (!usable) return retry_as_png(*batch);
    fed_.push_back(std::move(batch));
    pipeline_for(fed_.back()->samples.size()).feed(fed_.back()->files);
  }

  void finish_first() {
    try {
      fed_.front()->result.set_value(pipeline_->pop());
      fed_.pop_front();
    } catch (const Error&) {
      pipeline_.reset();  // drops all batches in it
      for (const auto& each : std::exchange(fed_, {})) retry_as_png(*each);
    }
  }

  /// Decodes a failed batch, or reports its bad samples. The pipeline must be empty.
  void retry_as_png(FileBatch& batch) try {
    data::DecodedBatch decoded;
    decoded.failures = read(batch, /*as_png=*/true);
    if (decoded.failures.empty()) {
      pipeline_for(batch.samples.size()).feed(batch.files);
      decoded = pipeline_->pop();
    }
    batch.result.set_value(std::move(decoded));
  } catch (...) {
    pipeline_.reset();
    batch.result.set_exception(std::current_exception());
  }

  /// Reads the files of a batch and returns the unusable ones.
  std::vector<data::SampleFailure> read(FileBatch& batch, bool as_png) const {
    std::vector<data::SampleFailure> failures;
    for (std::size_t index = 0; index < batch.samples.size(); ++index) {
      try {
        read_sample(batch, index, as_png);
      } catch (const Error& error) {
        failures.push_back({batch.samples[index], error.what()});
      }
    }
    return failures;
  }

  void read_sample(FileBatch& batch, std::size_t index, bool as_png) const {
    const auto& [samples, geometry, decode, threads] = *setup_.images;
    const std::int64_t sample = batch.samples[index];
    const std::string name = samples.sample_name(sample);
    auto& file = batch.files[index];
    file = samples.read(sample, batch.buffers[index]);
    const imaging::Header header = imaging::read_header(file, name, geometry.decode.max_pixels);
    if (header.is_plain && !as_png) {
      const std::int64_t channels = header.components == 1 ? 1 : 3;
      return data::require_geometry({channels, header.height, header.width}, geometry, name);
    }
    const imaging::Image image = imaging::decode(file, name, geometry.decode);
    data::require_geometry({image.channels, image.height, image.width}, geometry, name);
    const std::string png = imaging::encode_png(image);
    batch.buffers[index].assign(png.begin(), png.end());
    file = batch.buffers[index];
  }

  /// Returns a pipeline for this many samples. If the current one is too small, it must be empty.
  Pipeline& pipeline_for(std::size_t samples) {
    if (!pipeline_ || pipeline_->max_batch() < samples) {
      pipeline_.reset();
      pipeline_ = std::make_unique<Pipeline>(setup_, samples);
    }
    return *pipeline_;
  }

  data::ImageDecoderSetup setup_;
  std::unique_ptr<Pipeline> pipeline_;
  FileBatches fed_;
  std::mutex mutex_;  // guards waiting_ and ending_
  std::condition_variable changed_;
  FileBatches waiting_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace
}  // namespace mnist_train::dali

// Looked up by data/image_decoder.cpp.
extern "C" __attribute__((visibility("default"))) mnist_train::data::ImageDecoder*
mnist_train_make_dali_decoder(const mnist_train::data::ImageDecoderSetup& setup) {
  return new mnist_train::dali::DaliDecoder(setup);
}
