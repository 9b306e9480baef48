# Two stages: one builds a virtual environment from the lock file, the other carries nothing but that and Python.

FROM python:3.12-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/evidence-proxy
WORKDIR /src
# What is locked first: it changes seldom, so this layer is kept from build to build.
COPY requirements.lock ./
RUN /opt/evidence-proxy/bin/pip install --require-hashes --only-binary :all: -r requirements.lock
# What only building and testing needs goes: headers and sources, tests, symbols of debuggers, and Arrow's own ways to
# networks, since LanceDB reaches object stores by itself. NumPy's and Pillow's libraries were patched after they were
# linked, and would break. Byte code stays: a container cannot write it, and would compile everything at each start.
RUN apt-get update && apt-get install --yes --no-install-recommends binutils \
    && cd /opt/evidence-proxy/lib/python3*/site-packages \
    && rm -rf pyarrow/include pyarrow/src pyarrow/*flight* pyarrow/*_s3* pyarrow/_s3fs* pyarrow/_pyarrow_cpp_tests* \
        pyarrow/libarrow_python*.so pyarrow/libarrow_python*.so.*.*.* \
    && find . -type d -name tests -prune -exec rm -rf {} + \
    && find . -type f -regex '.*\.\(pyx\|pxd\|pxi\|pyi\|h\|hpp\|c\|cpp\|a\)' -delete \
    && find . -type f -name '*.so*' -not -path './numpy*' -not -path './PIL/*' -not -path './pillow.libs/*' \
        -exec strip --strip-unneeded {} + \
    && /opt/evidence-proxy/bin/python -c "import lancedb, pyarrow.dataset, aiohttp, uvloop, PIL.Image, rapidfuzz, tiktoken"
COPY pyproject.toml README.md LICENSE NOTICES.md ./
COPY proxy ./proxy
# The build backend goes into pip's own build environment, and so never into the image.
RUN /opt/evidence-proxy/bin/pip install --no-deps . \
    && /opt/evidence-proxy/bin/pip uninstall --yes pip

FROM python:3.12-slim
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin evidence \
    && install --directory --owner evidence --group evidence --mode 0700 /data
COPY --from=build /opt/evidence-proxy /opt/evidence-proxy
COPY config/default.toml /etc/evidence-proxy.toml
# In a container the port is the network's, and who may reach it is decided outside.
ENV PATH=/opt/evidence-proxy/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    EVIDENCE_PROXY_SERVER__HOST=0.0.0.0 \
    EVIDENCE_PROXY_SERVER__ALLOW_ANYONE=true \
    EVIDENCE_PROXY_STORE__DATA_DIR=/data
USER evidence
VOLUME /data
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz', timeout=2)"]
ENTRYPOINT ["evidence-proxy"]
CMD ["serve", "--config", "/etc/evidence-proxy.toml"]
