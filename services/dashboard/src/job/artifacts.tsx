// Files of a job: a list that can be downloaded; images and texts are shown here.
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { read } from "../api/client.ts";
import { artifactQuery, artifactsQuery } from "../api/queries.ts";
import type { JobArtifact } from "../api/types.ts";
import { bytes } from "../format.ts";
import { Symbol } from "../ui/icons.tsx";
import { Empty, ErrorNote, Loading } from "../ui/notes.tsx";
import { Ago } from "../ui/time.tsx";

const IMAGE = /\.(png|jpe?g|gif|webp)$/i;
const TEXT = /\.(txt|log|json|jsonl|csv|tsv|ya?ml|md|py|toml|ini|cfg|sh|xml|html?)$/i;
/** Files that no text editor shows. */
const BINARY = /\.(npz|npy|pt|pth|bin|safetensors|ckpt|h5|hdf5|pb|onnx|tflite|pkl|pickle|joblib|parquet|arrow|tfrecord|zip|tar|t?gz|bz2|xz|zst|7z|pdf|svg|mp3|wav|mp4|whl|so|exe)$/i;
const SHOWN_BYTES = 262_144;
const IMAGE_BYTES = 20_000_000;

/** A small file of a kind that is not known, e.g. README, is read as a text. */
const opens = (entry: JobArtifact): boolean => IMAGE.test(entry.path) || TEXT.test(entry.path) || (entry.size <= SHOWN_BYTES && !BINARY.test(entry.path));

export const artifactPath = (id: string, path: string): string => `/v1/jobs/${id}/artifacts/${path.split("/").map(encodeURIComponent).join("/")}`;

export function Artifacts({ id, file, onFile }: { id: string; file: string | undefined; onFile: (path: string | undefined) => void }) {
  const listing = useInfiniteQuery(artifactsQuery(id));
  const files = listing.data?.pages.flatMap((page) => page.artifacts) ?? [];
  const listed = files.find((entry) => entry.path === file);
  // The address may name a file of a page that is not loaded.
  const other = useQuery({ ...artifactQuery(id, file ?? ""), enabled: file !== undefined && listing.isSuccess && !listed });
  if (listing.error) return <ErrorNote error={listing.error} retry={() => void listing.refetch()} />;
  if (listing.isPending) return <Loading what="files" />;
  if (files.length === 0)
    return (
      <Empty title="No files yet">
        <p>
          What the training writes to <code>RESULT_DIR</code> is stored when it ends.
        </p>
      </Empty>
    );
  const open = listed ?? other.data ?? undefined;
  return (
    <>
      {file !== undefined && !open && other.data === null ? <p className="note">There is no file {file} in this job.</p> : null}
      {open ? <Preview id={id} file={open} onClose={() => onFile(undefined)} /> : null}
      <table className="plain">
        <caption className="sr-only">Files</caption>
        <thead>
          <tr>
            <th scope="col">Path</th>
            <th scope="col" className="right">Size</th>
            <th scope="col" className="right wide-only">Stored</th>
            <th scope="col">
              <span className="sr-only">Download</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {files.map((entry) => (
            <tr key={entry.path}>
              <td className="path">
                {opens(entry) ? (
                  <button type="button" className="link" onClick={() => onFile(entry.path)}>
                    {entry.path}
                  </button>
                ) : (
                  entry.path
                )}
              </td>
              <td className="right">{bytes(entry.size)}</td>
              <td className="right wide-only">
                <Ago time={entry.modified} />
              </td>
              <td className="right">
                <a href={`.${artifactPath(id, entry.path)}`} download aria-label={`Download ${entry.path}`}>
                  <Symbol name="download" />
                </a>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {listing.hasNextPage ? (
        <button type="button" className="button" disabled={listing.isFetching} onClick={() => void listing.fetchNextPage({ cancelRefetch: false })}>
          More files
        </button>
      ) : null}
    </>
  );
}

function Preview({ id, file, onClose }: { id: string; file: JobArtifact; onClose: () => void }) {
  const image = IMAGE.test(file.path);
  const box = useRef<HTMLElement>(null);
  useEffect(() => {
    // The list may be scrolled far down, to the file that was clicked.
    box.current?.scrollIntoView({ block: "nearest" });
  }, [file.path]);
  const content = useQuery({
    queryKey: ["artifact", id, file.path, file.etag],
    queryFn: async ({ signal }) => {
      const response = await read(artifactPath(id, file.path), {
        signal,
        headers: image || file.size <= SHOWN_BYTES ? {} : { Range: `bytes=0-${SHOWN_BYTES - 1}` },
      });
      return response.blob();
    },
    enabled: !image || file.size <= IMAGE_BYTES,
    gcTime: 0,
  });
  return (
    <section ref={box} className="card preview" aria-label={`Content of ${file.path}`}>
      <header>
        <b>{file.path}</b>
        <button type="button" className="quiet icon-only" aria-label="Close the file" onClick={onClose}>
          <Symbol name="close" size={12} />
        </button>
      </header>
      {content.error ? <ErrorNote error={content.error} /> : null}
      {content.data ? image ? <Picture blob={content.data} name={file.path} /> : <Text blob={content.data} cut={file.size > SHOWN_BYTES} /> : null}
    </section>
  );
}

function Picture({ blob, name }: { blob: Blob; name: string }) {
  const [url, setUrl] = useState("");
  const [broken, setBroken] = useState(false);
  useEffect(() => {
    const type = `image/${/\.jpe?g$/i.test(name) ? "jpeg" : name.slice(name.lastIndexOf(".") + 1).toLowerCase()}`;
    const made = URL.createObjectURL(new Blob([blob], { type }));
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [blob, name]);
  if (broken) return <p className="faint">The browser cannot show this image.</p>;
  return url ? <img src={url} alt={name} onError={() => setBroken(true)} /> : null;
}

function Text({ blob, cut }: { blob: Blob; cut: boolean }) {
  const [text, setText] = useState("");
  useEffect(() => {
    void blob.text().then(setText);
  }, [blob]);
  if (text.includes("\0")) return <p className="faint">This is no text: download it.</p>;
  if (blob.size === 0) return <p className="faint">The file is empty.</p>;
  return (
    <>
      <pre tabIndex={0}>{text}</pre>
      {cut ? <p className="faint">Only the first {bytes(SHOWN_BYTES)} are shown.</p> : null}
    </>
  );
}
