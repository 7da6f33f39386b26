# `_frames`: the quarantine's functions on frames, for the Python tests; it stands beside `_core`.
Python_add_library(_frames MODULE WITH_SOABI ${CMAKE_SOURCE_DIR}/tests/cpp/frames/frames_module.cpp)
target_link_libraries(_frames PRIVATE magneto_core)
set_target_properties(_frames PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${MAGNETO_MODULE_DIR})

# `_sizes`: symbolic sizes as torch operators, for the Python tests.
if(MAGNETO_TORCH)
  add_library(_sizes MODULE tests/cpp/sizes/sizes_library.cpp
    $<FILTER:$<TARGET_OBJECTS:_C>,INCLUDE,/unity_sizes_cxx>)
  target_link_libraries(_sizes PRIVATE magneto_core magneto_torch)
  set_target_properties(_sizes PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${MAGNETO_MODULE_DIR})
endif()

# The C++ unit tests: one extension module `_units`, run by tests/cpp/run_units.py inside a real interpreter, and one
# CTest case per TEST(...), listed when ctest starts so that no list has to be kept.
file(GLOB unit_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/cpp/*.cpp)
add_library(_units MODULE ${unit_sources})
target_link_libraries(_units PRIVATE magneto_core)
target_include_directories(_units PRIVATE tests/cpp)
set_target_properties(_units PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})

set(unit_python ${Python_EXECUTABLE})
if(MAGNETO_ASAN)
  # The sanitizers must be loaded before Python, and the C++ library with them or they miss its exceptions.
  set(preload)
  foreach(library asan ubsan stdc++)
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=lib${library}.so
      OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE)
    file(REAL_PATH ${found} found)
    list(APPEND preload ${found})
  endforeach()
  list(JOIN preload ":" preload)
  set(unit_python ${CMAKE_BINARY_DIR}/python)
  configure_file(cmake/sanitized_python.in python @ONLY
    FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
endif()

set(unit_runner ${CMAKE_SOURCE_DIR}/tests/cpp/run_units.py)
configure_file(cmake/unit_cases.cmake.in unit_cases.cmake @ONLY)
set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${CMAKE_BINARY_DIR}/unit_cases.cmake)
