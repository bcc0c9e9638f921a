{{- define "weft.claim" -}}
volumeClaimTemplates:
  - metadata:
      name: data
      labels:
        app.kubernetes.io/name: weft
        app.kubernetes.io/instance: {{ .root.Release.Name }}
    spec:
      accessModes: [ReadWriteOnce]
      {{- with .persistence.storageClass }}
      storageClassName: {{ . | quote }}
      {{- end }}
      resources: {requests: {storage: {{ .persistence.size }}}}
{{- end -}}

{{/* A store of the release: (dict "root" $ "name" "etcd" "ports" (dict "client" 2379) "container" "..." "init" "..."
"volumes" "..."); the strings are YAML. */}}
{{- define "weft.store" -}}
{{- $root := .root -}}
{{- $values := index $root.Values .name -}}
apiVersion: apps/v1
kind: StatefulSet
metadata:
  {{- include "weft.metadata" . | nindent 2 }}
spec:
  replicas: 1
  # A broken pod does not block the rollback that mends it. Immutable.
  podManagementPolicy: Parallel
  serviceName: {{ include "weft.fullname" $root }}-{{ .name }}
  selector:
    matchLabels:
      {{- include "weft.selector" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "weft.selector" . | nindent 8 }}
        {{- with $root.Values.commonLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "weft.fullname" $root }}-services
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: 60
      {{- include "weft.scheduling" . | nindent 6 }}
      {{- include "weft.pullSecrets" $root | nindent 6 }}
      securityContext:
        {{- include "weft.podSecurity" $root | nindent 8 }}
      {{- with .init }}
      initContainers:
        {{- . | nindent 8 }}
      {{- end }}
      containers:
        - name: {{ .name }}
          image: {{ include "weft.image" (dict "root" $root "name" .name) }}
          imagePullPolicy: {{ $root.Values.images.pullPolicy }}
          securityContext:
            {{- include "weft.containerSecurity" $root | nindent 12 }}
          ports:
            {{- range $port, $number := .ports }}
            - {name: {{ $port }}, containerPort: {{ $number }}}
            {{- end }}
          resources:
            {{- toYaml $values.resources | nindent 12 }}
          {{- .container | nindent 10 }}
        {{- with .beside }}
        {{- . | nindent 8 }}
        {{- end }}
      volumes:
        - name: tmp
          emptyDir: {}
        {{- .volumes | nindent 8 }}
  {{- include "weft.claim" (dict "root" $root "persistence" $values.persistence) | nindent 2 }}
---
# Headless: clients reach the pod itself, also while it is not ready.
apiVersion: v1
kind: Service
metadata:
  {{- include "weft.metadata" . | nindent 2 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    {{- include "weft.selector" . | nindent 4 }}
  ports:
    {{- range $port, $number := .ports }}
    - {name: {{ $port }}, port: {{ $number }}, targetPort: {{ $port }}}
    {{- end }}
{{- end -}}

{{/*
Weft's image in a store's pod: (dict "root" $ "name" "mongodb"). The store is not restarted for a new version of Weft alone: the image that
its pod has is kept until the store's own image or the registry changes. Where nothing is known of the cluster (`helm template`), it
is that of this version.
*/}}
{{- define "weft.storesPlatform" -}}
{{- $image := include "weft.image" (dict "root" .root "name" "platform") -}}
{{- $store := include "weft.image" (dict "root" .root "name" .name) -}}
{{- $present := lookup "apps/v1" "StatefulSet" .root.Release.Namespace (printf "%s-%s" (include "weft.fullname" .root) .name) -}}
{{- $version := "(:[^/]*)?(@.*)?$" -}}
{{- $pod := dig "spec" "template" "spec" dict $present -}}
{{- range $container := $pod.containers -}}
{{- if and (eq $container.name $.name) (eq $container.image $store) -}}
{{- range $pod.initContainers -}}
{{- if eq (regexReplaceAll $version .image "") (regexReplaceAll $version $image "") }}{{ $image = .image }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $image -}}
{{- end -}}

{{/* The init container that lays out the private files of a store: (dict "root" $ "name" "s3" "mounts" "..." "folders" (list)) */}}
{{- define "weft.storeFiles" -}}
- name: files
  image: {{ include "weft.storesPlatform" . }}
  imagePullPolicy: {{ .root.Values.images.pullPolicy }}
  command:
    {{- concat (list "python" "-m" "services.local.pod_home" .name) (.folders | default list) | toYaml | nindent 4 }}
  securityContext:
    {{- include "weft.containerSecurity" .root | nindent 4 }}
  resources:
    requests: {cpu: 50m, memory: 96Mi}
    limits: {memory: 256Mi}
  volumeMounts:
    - {name: private, mountPath: /run/weft}
    - {name: keys, mountPath: /etc/weft/keys, readOnly: true}
    - {name: tmp, mountPath: /tmp}
    {{- with .mounts }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "weft.storeVolumes" -}}
- name: private
  emptyDir: {medium: Memory, sizeLimit: 16Mi}
- name: keys
  projected:
    defaultMode: 0440
    sources:
      {{- include "weft.source" (dict "secret" (include "weft.secret" (dict "root" .root "given" (index .root.Values .name).existingSecret "name" .name)) "items" .items) | nindent 6 }}
{{- end -}}
