import pytest


@pytest.fixture(params=[0, 1, 2])
def seed(request):
    return request.param
