# The operator: no MindSpore, no compiler, nobody's root. Build it with `make images` (docs/images.md).
# BASE_IMAGE has Python 3.11 or 3.12 with venv as python3; build and run stage take the same one.
ARG BASE_IMAGE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY images/locks/build.lock images/locks/operator.lock ./
# A private index and its credentials come as the secret `pip` and never into a layer.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf,required=false \
    python3 -m venv /opt/build && /opt/build/bin/pip install --quiet --require-hashes --requirement build.lock
RUN --mount=type=secret,id=pip,target=/etc/pip.conf,required=false \
    python3 -m venv --without-pip /opt/resnetboost && \
    /opt/build/bin/pip --python /opt/resnetboost/bin/python install --quiet --require-hashes --requirement operator.lock
COPY api api
COPY operator operator
RUN PATH=/opt/build/bin:$PATH pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir wheels ./api ./operator && \
    /opt/build/bin/pip --python /opt/resnetboost/bin/python install --quiet --no-deps --no-index wheels/*.whl

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="ResNetBoost operator" \
      org.opencontainers.image.description="Turns ResNetBoostJobs into gangs of pods" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/resnetboost /opt/resnetboost
# The root file system may be read-only: nothing is written, not even bytecode.
# kopf asks for the name of the user, whom no passwd file knows.
ENV PATH=/opt/resnetboost/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 LOGNAME=resnetboost
USER 1000:1000
WORKDIR /tmp
EXPOSE 8080
CMD ["python", "-m", "resnetboost_operator"]
