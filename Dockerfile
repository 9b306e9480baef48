# Two stages: one builds a virtual environment from the lock file, the other carries nothing but that and Python.

FROM python:3.12-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/evidence-proxy
WORKDIR /src
# What is locked first: it changes seldom, so this layer is kept from build to build.
COPY requirements.lock ./
RUN /opt/evidence-proxy/bin/pip install --require-hashes --only-binary :all: -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
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
