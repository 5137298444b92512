#include "dali/pipeline.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <mutex>
#include <string>

#include "base/error.h"
#include "base/file.h"

// Declared by no header of the C interface; without it no operator is known.
extern "C" void daliInitOperators();  // NOLINT(readability-identifier-naming)

namespace mnist_train::dali {

namespace {

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

/// Drops what is written to standard error while it lives.
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
  daliArgDesc_t result{};
  result.name = name;
  result.dtype = type;
  result.ivalue = value;
  return result;
}

}  // namespace

Pipeline::Pipeline(const data::ImageDecoderSetup& setup, std::size_t max_batch)
    : setup_(setup), max_batch_(max_batch) {
  // DALI prints long warnings about codecs that are not installed (JPEG 2000, TIFF).
  const QuietStderr quiet;
  initialize();
  create();
  add_input();
  add_operators();
  build();
}

void Pipeline::create() {
  daliPipelineParams_t parameters{};
  DALI_SET_PARAM(parameters, max_batch_size, static_cast<int>(max_batch_));
  DALI_SET_PARAM(parameters, num_threads, setup_.threads);
  // Without a GPU it must not be set at all.
  if (setup_.gpu) DALI_SET_PARAM(parameters, device_id, *setup_.gpu);
  DALI_SET_PARAM(parameters, exec_type, DALI_EXEC_DYNAMIC);
  constexpr int kDepth = 2;  // batches
  DALI_SET_PARAM(parameters, prefetch_queue_depths, (daliPrefetchQueueSizes_t{kDepth, kDepth}));
  daliPipeline_h pipeline = nullptr;
  require(daliPipelineCreate(&pipeline, &parameters));
  pipeline_.reset(pipeline);
}

void Pipeline::add_input() {
  daliPipelineIODesc_t input{};
  input.name = kInput;
  input.device = DALI_STORAGE_CPU;
  input.dtype_present = 1;
  input.dtype = DALI_UINT8;
  input.ndim_present = 1;
  input.ndim = 1;
  require(daliPipelineAddExternalInput(pipeline_.get(), &input));
  last_ = {kInput, DALI_STORAGE_CPU};
}

void Pipeline::add_operators() {
  const data::ImageGeometry& geometry = setup_.images->geometry;
  const bool gray = geometry.channels == 1;
  constexpr std::int64_t kRgb = 0;  // DALIImageType, which only C++ headers define
  constexpr std::int64_t kGray = 2;
  // Orientation and chroma are treated as by the decoders of src/imaging.
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
  if (gray) return;  // one plane is the same either way
  daliArgDesc_t layout{};
  layout.name = "output_layout";
  layout.dtype = DALI_STRING;
  layout.str = "CHW";
  add_operator("CropMirrorNormalize", backend, "planes",
               {argument("dtype", DALI_INT32, DALI_UINT8), layout});
}

void Pipeline::add_operator(const char* schema, daliBackend_t backend, const char* output,
                            const std::vector<daliArgDesc_t>& arguments) {
  const daliIODesc_t out{output, backend == DALI_BACKEND_CPU ? DALI_STORAGE_CPU : DALI_STORAGE_GPU};
  daliOperatorDesc_t description{};
  description.schema_name = schema;
  description.backend = backend;
  description.num_inputs = 1;
  description.inputs = &last_;
  description.num_outputs = 1;
  description.outputs = &out;
  description.num_args = static_cast<int>(arguments.size());
  description.args = arguments.data();
  require(daliPipelineAddOperator(pipeline_.get(), &description));
  last_ = out;
}

void Pipeline::build() {
  daliPipelineIODesc_t output{};
  output.name = last_.name;
  output.device = last_.device_type;
  require(daliPipelineSetOutputs(pipeline_.get(), 1, &output));
  require(daliPipelineBuild(pipeline_.get()));
}

void Pipeline::feed(const std::vector<std::span<const std::uint8_t>>& files) {
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

data::DecodedBatch Pipeline::pop() {
  daliPipelineOutputs_h popped = nullptr;
  require(daliPipelinePopOutputs(pipeline_.get(), &popped), ExitCode::kData);
  const Owned<daliPipelineOutputs_h> outputs(popped);
  daliTensorList_h got = nullptr;
  require(daliPipelineOutputsGet(popped, &got, 0));
  const Owned<daliTensorList_h> list(got);
  // Fails where samples do not lie behind one another, which those of equal size do.
  daliTensor_h view = nullptr;
  require(daliTensorListViewAsTensor(got, &view));
  std::shared_ptr<const void> owner(view, [](daliTensor_h tensor) { FreeHandle{}(tensor); });
  daliTensorDesc_t description{};
  require(daliTensorGetDesc(view, &description));
  return {static_cast<const std::uint8_t*>(description.data), std::move(owner), {}};
}

}  // namespace mnist_train::dali
