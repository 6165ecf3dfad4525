"""The number of BLAS threads, whatever limit was set before."""

import threading

import pytest
from threadpoolctl import OpenBLASController, threadpool_info, threadpool_limits

import ragshield_core.detectors.label.model  # noqa: F401 - later imports are not inspected
from ragshield_core.neighbors.threads import one_thread


def of_blas():
    """Return how many threads NumPy's and SciPy's products have."""
    libraries = [one for one in threadpool_info() if one.get("threading_layer") == "pthreads"]
    assert libraries
    return {one["num_threads"] for one in libraries}


@pytest.fixture
def somebody_else():
    """A thread that has set the number of BLAS threads and keeps running."""
    has_set, leave = threading.Event(), threading.Event()
    OpenBLASController.clear_controlling_thread(force=True)  # whichever thread set it before

    def work():
        with threadpool_limits(2):  # on any number of cores
            has_set.set()
            leave.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    assert has_set.wait(60)
    yield
    leave.set()
    thread.join()


def in_a_thread(do):
    """Return the result of a function that runs in another thread."""
    found = []
    thread = threading.Thread(target=lambda: found.append(do()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.usefixtures("somebody_else")
def test_one_thread_limits_blas_in_every_thread():
    def limited():
        with one_thread():
            return of_blas()

    assert of_blas() == {2}
    assert limited() == {1}
    assert of_blas() == {2}
    assert in_a_thread(limited) == {1}
    assert limited() == {1}
