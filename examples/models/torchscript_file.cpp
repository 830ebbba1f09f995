#include "examples/models/torchscript_file.h"

#include "compiler/frontend/infer.h"

#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>
#include <torch/csrc/jit/serialization/unpickler.h>
#include <torch/script.h>

#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <sstream>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace piper::models {

namespace {

using torch::jit::IValue;

std::string join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

using Reader = caffe2::serialize::PyTorchStreamReader;

/// Unpickles one of the archive's values. Tensors have the memory that `memory_of` gives their
/// record; an object of whatever class becomes one with a single slot: its attributes.
IValue unpickle(Reader& reader, const std::string& name,
                const std::function<at::DataPtr(const std::string& record)>& memory_of) {
  const auto record = reader.getRecord(name + ".pkl");
  const char* from = static_cast<const char*>(std::get<0>(record).get());
  size_t left = std::get<1>(record);
  const auto read = [&](char* to, size_t count) {
    count = std::min(count, left);
    std::memcpy(to, from, count);
    from += count;
    left -= count;
    return count;
  };
  const auto unit = std::make_shared<torch::jit::CompilationUnit>();
  const c10::StrongTypePtr any_class(unit, c10::ClassType::create(std::nullopt, unit));
  torch::jit::Unpickler unpickler(
      read, [&](const c10::QualifiedName&) { return any_class; },
      [](const c10::StrongTypePtr& type, IValue attributes) {
        auto object = c10::ivalue::Object::create(type, 1);
        object->setSlot(0, std::move(attributes));
        return object;
      },
      [&](const std::string& key) { return memory_of(name + "/" + key); }, at::kCPU);
  return unpickler.parse_ivalue();
}

/// The tensors of such an object and of those inside of it.
void collect(const IValue& object, const std::string& prefix,
             std::map<std::string, at::Tensor>& to) {
  const IValue& attributes = object.toObjectRef().getSlot(0);
  if (!attributes.isGenericDict())
    throw std::runtime_error(fmt::format("'{}' is saved in a format of its own", prefix));
  for (const auto& item : attributes.toGenericDict()) {
    const std::string name = join(prefix, item.key().toStringRef());
    const IValue& value = item.value();
    if (value.isTensor() && value.toTensor().defined())
      to.emplace(name, value.toTensor());
    else if (value.isObject())
      collect(value, name, to);
    else if (value.isTensorList())
      throw std::runtime_error(fmt::format("'{}' is a list of tensors", name));
  }
}

bool has_tensors(const IValue& constants) {
  const auto& elements = constants.toTupleRef().elements();
  return std::any_of(elements.begin(), elements.end(),
                     [](const IValue& element) { return element.isTensor(); });
}

void names_of(const torch::jit::Module& module, const std::string& prefix, std::string& list) {
  for (const auto& child : module.named_children()) {
    const std::string name = join(prefix, child.name);
    list += (list.empty() ? "" : ", ") + name;
    names_of(child.value, name, list);
  }
}

} // namespace

void for_each_tensor(const torch::jit::Module& module, const VisitTensor& visit,
                     const std::string& prefix) {
  torch::jit::Module owner = module;
  const auto type = owner.type();
  for (size_t i = 0; i < type->numAttributes(); ++i) {
    const std::string& attribute = type->getAttributeName(i);
    const IValue value = owner.attr(attribute);
    if (type->getAttribute(i)->is_module())
      for_each_tensor(value.toModule(), visit, join(prefix, attribute));
    else if (value.isTensor() && value.toTensor().defined())
      visit(owner, attribute, join(prefix, attribute));
  }
}

TorchscriptFile::~TorchscriptFile() {
  tensors_.clear();
  if (begin_)
    ::munmap(begin_, size_);
}

void TorchscriptFile::map(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (file >= 0 && ::fstat(file, &status) == 0) {
    size_ = static_cast<size_t>(status.st_size);
    void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    begin_ = mapped == MAP_FAILED ? nullptr : static_cast<char*>(mapped);
  }
  const int reason = errno;
  if (file >= 0)
    ::close(file);
  if (!begin_)
    throw std::system_error(reason, std::generic_category());
}

void TorchscriptFile::read(const std::string& path) {
  Reader reader(path);
  digest_ = reader.serializationId();
  const auto mapped = [&](const std::string& record) {
    char* data = begin_ + reader.getRecordOffset(record);
    return at::DataPtr(
        data, nullptr, [](void*) {}, at::kCPU);
  };
  collect(unpickle(reader, "data", mapped), "", tensors_);
  // Tensors written into the code are loaded with it, to the device of everything else.
  const bool is_code_whole = !has_tensors(unpickle(reader, "constants", mapped));
  modules_ = torch::jit::load(path, is_code_whole ? at::kMeta : at::kCPU);
  for_each_tensor(
      modules_, [](torch::jit::Module& owner, const std::string& attribute, const std::string&) {
        const at::Tensor tensor = owner.attr(attribute).toTensor();
        owner.setattr(attribute, at::empty_like(tensor, tensor.options().device(at::kMeta))
                                     .requires_grad_(tensor.requires_grad()));
      });
}

Result<std::shared_ptr<const TorchscriptFile>> TorchscriptFile::open(const std::string& path) {
  std::shared_ptr<TorchscriptFile> file(new TorchscriptFile);
  const std::string where = fmt::format("module '{}'", path);
  try {
    file->map(path);
  } catch (const std::exception& error) {
    return user_error(fmt::format("the file cannot be read: {}", error.what()), where,
                      "give a file on this machine that torch.jit.save wrote");
  }
  try {
    file->read(path);
  } catch (const std::exception& error) {
    return user_error(
        fmt::format("it is not a TorchScript module that can be trained: {}", first_line(error)),
        where, "save one with torch.jit.save(torch.jit.script(module), path)");
  }
  return std::shared_ptr<const TorchscriptFile>(std::move(file));
}

Result<torch::jit::Module> TorchscriptFile::find(const std::string& path) const {
  torch::jit::Module module = modules_;
  std::istringstream parts(path);
  for (std::string part; std::getline(parts, part, '.');) {
    if (!module.hasattr(part) || !module.attr(part).isModule()) {
      std::string names;
      names_of(modules_, "", names);
      return user_error(fmt::format("the file has no submodule '{}'", path), {}, "it has " + names);
    }
    module = module.attr(part).toModule();
  }
  return module;
}

torch::jit::Module TorchscriptFile::load(const std::string& path) const {
  torch::jit::Module module = find(path).value_or_throw().deepcopy();
  std::map<const void*, at::Tensor> shared;
  for_each_tensor(
      module,
      [&](torch::jit::Module& owner, const std::string& attribute, const std::string& name) {
        at::Tensor& tensor = shared[identity(name)];
        if (!tensor.defined() || !identity(name)) {
          const at::Tensor& saved = tensors_.at(name);
          tensor = saved.detach().clone().requires_grad_(saved.requires_grad());
        }
        owner.setattr(attribute, tensor);
      },
      path);
  return module;
}

const void* TorchscriptFile::identity(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() || found->second.numel() == 0 ? nullptr
                                                               : found->second.const_data_ptr();
}

} // namespace piper::models
